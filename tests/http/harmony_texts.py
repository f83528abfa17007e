# SPDX-License-Identifier: Apache-2.0
"""Replies in channels, and what is in them: for test_channels.py, and for tests/scripts/check_harmony.py,
which has openai-harmony read the same."""

import json

WORDS = ("start", "channel", "constrain", "message", "end", "return", "call")
MARKERS = [f"<|{word}|>" for word in WORDS]
NEXT = "<|end|><|start|>assistant"
ANALYSIS, FINAL, COMMENTARY = (
    f"<|channel|>{name}<|message|>" for name in ("analysis", "final", "commentary"))
GIVEN = {"city": 'Oslo "世"', "days": 3}
ARGUMENTS = json.dumps(GIVEN, ensure_ascii=False)
ROLE = "to=functions.weather<|channel|>commentary json<|message|>"
TO = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
ASIDE = TO.replace("commentary", "analysis")
CALLED = [("weather", GIVEN)]
THOUGHT = "abcdefghij klmnopqrst"
# Of each: what the model writes; its reasoning, content and calls.
TEXTS = {
    "thinks": (f"{ANALYSIS}So, 世.{NEXT}{FINAL}Yes, <b>.<|return|>", "So, 世.", "Yes, <b>.", []),
    "answers": (f"{FINAL}Yes.<|return|>", "", "Yes.", []),
    "plain": ("Yes.", "", "Yes.", []),
    "calls": (f"{ANALYSIS}I need it.{NEXT}{TO}{ARGUMENTS}<|call|>", "I need it.", "", CALLED),
    "role": (f"{ANALYSIS}So.{NEXT} {ROLE}{ARGUMENTS}<|call|>", "So.", "", CALLED),
    "preamble": (f"{ANALYSIS}So.{NEXT}{COMMENTARY}I look.{NEXT}{TO}{ARGUMENTS}<|call|>", "So.", "I look.",
                 CALLED),
    "twice": (f"{ANALYSIS}One.{NEXT}{COMMENTARY}Wait.{NEXT}{ANALYSIS}Two.{NEXT}{FINAL}Done.<|return|>",
              "One.\n\nTwo.", "Wait.\n\nDone.", []),
    "several": (f"{TO}{ARGUMENTS}{NEXT}<|channel|>commentary to=functions.time<|message|>{{}}<|call|>",
                "", "", [*CALLED, ("time", {})]),
    "only": (f"{TO}{ARGUMENTS}<|call|>", "", "", CALLED),
    "aside": (f"{ANALYSIS}So.{NEXT}{ASIDE}{ARGUMENTS}<|call|>", "So.", "", CALLED),
    "json": (f"{ANALYSIS}JSON.{NEXT}{FINAL}{ARGUMENTS}<|return|>", "JSON.", ARGUMENTS, []),
    "budget": (f"{ANALYSIS}{THOUGHT}{NEXT}{FINAL}Yes, it is so.<|return|>", THOUGHT, "Yes, it is so.", []),
}
