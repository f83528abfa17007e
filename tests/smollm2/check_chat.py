# SPDX-License-Identifier: Apache-2.0
"""Chats with a server of SmolLM2-135M-Instruct in f32, and with transformers: greedy replies of 20
conversations must have the same tokens. Where they part, both sums of f32 may be right: the gap of
transformers' two best logits at that token is printed. Needs PyTorch and transformers (5.24.0).

    regla serve --model models/smollm2-135m-instruct --weights f32 --kv f32 --port 8000
    python tests/smollm2/check_chat.py models/smollm2-135m-instruct http://127.0.0.1:8000
"""

import json
import sys
import urllib.request

import torch
import transformers

NEW_TOKENS = 64
SYSTEM = {"role": "system", "content": "Answer in one short sentence."}
QUESTIONS = ["What is the capital of France?", "Why is the sky blue?", "Write a haiku about rain.",
             "2 + 2 =", "Translate to German: Good morning!", "Who wrote Faust?", "Hi",
             "List three fruits.",
             "Erkläre Licht – kurz.", "What is 世界?"]


def conversations():
    for question in QUESTIONS:
        yield [{"role": "user", "content": question}]
        yield [SYSTEM, {"role": "user", "content": question},
               {"role": "assistant", "content": "Let me think."},
               {"role": "user", "content": "Go on, please."}]


def ask(url, messages):
    body = {"messages": messages, "temperature": 0, "max_tokens": NEW_TOKENS, "return_token_ids": True}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    reply = json.load(urllib.request.urlopen(request))
    return reply["prompt_token_ids"], reply["choices"][0]["token_ids"]


def gap(model, ids):
    """By how much the best token's logit is above the second's after these tokens."""
    best = model(torch.tensor([ids])).logits[0, -1].topk(2)
    return f"{best.values[0] - best.values[1]:.2g} between {best.indices.tolist()} of {best.values[0]:.4g}"


def compare(model, tokenizer, url, messages):
    """(tokens of the reply, how many of them from the first on are those of transformers)"""
    prompt, ids = ask(url, messages)
    given = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt",
                                          return_dict=True)
    whole = model.generate(**given, max_new_tokens=NEW_TOKENS, do_sample=False)[0].tolist()
    length = given["input_ids"].shape[1]
    if prompt != whole[:length]:
        print(f"another prompt: {prompt}, {whole[:length]}")
        return max(1, len(ids)), 0
    equal = 0
    while equal < min(len(ids), len(whole) - length) and ids[equal] == whole[length + equal]:
        equal += 1
    if ids != whole[length:]:
        print(f"parts at token {equal}, {ids[equal:equal + 1]} for {whole[length + equal:][:1]}; gap "
              f"{gap(model, whole[:length + equal])}")
        return max(len(ids), len(whole) - length), equal
    return equal, equal


@torch.inference_mode()
def main(folder, url):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    same = tokens = equal_tokens = 0
    for messages in conversations():
        count, equal = compare(model, tokenizer, url, messages)
        same += count == equal
        tokens += count
        equal_tokens += equal
        print("same" if count == equal else "differs", count, messages[-1]["content"], flush=True)
    print(f"check_chat: {same} of {2 * len(QUESTIONS)} conversations have the tokens of transformers; "
          f"{equal_tokens} of {tokens} tokens")
    return 0 if same == 2 * len(QUESTIONS) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
