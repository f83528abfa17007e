# SPDX-License-Identifier: Apache-2.0
"""What a turn of agent_session.py says, how long it is, and how it went."""

import sys

WORDS = ("file line error test build cache server token state model parse write read open close index value "
         "branch commit merge result failed passed expected got order thread queue memory header request "
         "reply stream event folder name type list count number begin end change").split()


def words(source, count):
    return " ".join(source.choice(WORDS) for _ in range(count))


def turn_size(options, before, number):
    """Words of a tool's result, so that the last prompt has the tokens that are asked for."""
    left = (options.tokens - before) / (options.turns - number)
    return max(20, int(left * 0.75) - 60)


def tell(server, number, turn):
    print(f"{server.name}: turn {number + 1}: {turn['prompt']} tokens, {turn['new']} new, "
          f"{turn['computed']} computed, the first after {turn['first']:.3f} s", file=sys.stderr, flush=True)
