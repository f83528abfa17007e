# SPDX-License-Identifier: Apache-2.0
"""Chats with a server of SmolLM2-135M-Instruct in f32, and with transformers: greedy replies of 20
conversations must have the same tokens. Needs PyTorch and transformers (5.24.0).

    regla serve --model models/smollm2-135m-instruct --weights f32 --kv f32 --port 8000
    python tests/smollm2/check_chat.py models/smollm2-135m-instruct http://127.0.0.1:8000
"""

import json
import sys
import urllib.request

import torch
import transformers

NEW_TOKENS = 16
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
    choice = json.load(urllib.request.urlopen(request))["choices"][0]
    return choice["prompt_token_ids"], choice["token_ids"]


def main(folder, url):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    same = 0
    for messages in conversations():
        prompt, ids = ask(url, messages)
        given = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt",
                                              return_dict=True)
        whole = model.generate(**given, max_new_tokens=NEW_TOKENS, do_sample=False)[0].tolist()
        length = given["input_ids"].shape[1]
        equal = prompt == whole[:length] and ids == whole[length:]
        same += equal
        print("same" if equal else "differs", messages[-1]["content"], flush=True)
        if not equal:
            print(prompt == whole[:length], ids, whole[length:])
    print(f"check_chat: {same} of {2 * len(QUESTIONS)} conversations have the tokens of transformers")
    return 0 if same == 2 * len(QUESTIONS) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
