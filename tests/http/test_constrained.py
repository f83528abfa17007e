# SPDX-License-Identifier: Apache-2.0
"""Constrained output: every field that asks for it, and texts that are what it asks for, whatever
else the request says and whatever runs beside it. On the shipped model, which writes real text."""

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor

import harness
import openai
import pydantic
import pytest
from constraints import check_json, check_regex, random_regex, random_schema
from schema_types import REFUSED, faults_of, random_library_schema, refused_keyword
from harness import check_error, read_frames, text_of, wait_until
from stress_helpers import size

# Their full size is for `make test-stress`, on two models if they are there.
SCHEMAS = size("SCHEMAS", 50, 10, 1000)
REGEXES = size("REGEXES", 20, 5, 200)
WRITTEN = size("WRITTEN", 40, 5, 300)
SEED = size("SEED", 0, 0, 0)  # REGLA_STRESS_SEED: others than those of every run
SECOND = harness.ROOT / "models" / "smollm2-135m-instruct"
MODELS = [harness.shipped_model(), *([SECOND] if SCHEMAS > 50 and SECOND.is_dir() else [])]

pytestmark = pytest.mark.builds("dev", "asan")

CHAT = "/v1/chat/completions"
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
PROMPT = "The old king said to his"
COLOURS = [" red", " green as grass", " blue", " red and white"]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 150}},
          "required": ["name", "age"], "additionalProperties": False}
ANSWER = 'root ::= "yes" | "no, " [a-z]{2,5}'
# One of each kind, and what its texts are.
FORMS = {
    "choice": ({"structured_outputs": {"choice": COLOURS}}, lambda text: text in COLOURS),
    "regex": ({"structured_outputs": {"regex": "[A-Z][a-z]{1,8}( [a-z]{1,5}){2}"}},
              lambda text: re.fullmatch("[A-Z][a-z]{1,8}( [a-z]{1,5}){2}", text)),
    "json": ({"structured_outputs": {"json": PERSON}}, lambda text: check_json(text, PERSON)),
    "grammar": ({"structured_outputs": {"grammar": ANSWER}},
                lambda text: re.fullmatch("yes|no, [a-z]{2,5}", text)),
    "json_object": ({"structured_outputs": {"json_object": True}},
                    lambda text: isinstance(json.loads(text), dict)),
}
# The other names of these.
NAMES = [
    ("choice", {"guided_choice": COLOURS}),
    ("regex", {"guided_regex": "[A-Z][a-z]{1,8}( [a-z]{1,5}){2}"}),
    ("regex", {"regex": "[A-Z][a-z]{1,8}( [a-z]{1,5}){2}"}),
    ("json", {"guided_json": PERSON}),
    ("json", {"guided_json": json.dumps(PERSON)}),
    ("json", {"json_schema": json.dumps(PERSON)}),
    ("json", {"json_schema": PERSON}),
    ("json", {"response_format": {"type": "json_object", "schema": PERSON}}),
    ("json", {"response_format": {"type": "json_schema",
                                  "json_schema": {"name": "person", "schema": PERSON, "strict": True}}}),
    ("grammar", {"guided_grammar": ANSWER}),
    ("grammar", {"ebnf": ANSWER}),
    ("grammar", {"grammar": ANSWER}),
    ("json_object", {"guided_json_object": True}),
    ("json_object", {"response_format": {"type": "json_object"}}),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from conftest import finish, start
    folder = tmp_path_factory.mktemp("constrained")
    template = tmp_path_factory.mktemp("template") / "plain.jinja"
    template.write_text(TEMPLATE)
    running = start(folder, model=harness.shipped_model(), chat_template=template,
                    activations="f32")  # texts that end in time, drawn alike on all processors
    yield running
    finish(running)


def write(server, form, **fields):
    """The choices of a completion of this form."""
    fields = {"prompt": PROMPT, "max_tokens": 400, "temperature": 1, "top_p": 1, "seed": 1, **form, **fields}
    return server.complete(**fields)["choices"]


def check(kind, choice):
    """A whole text of this form, which ended by itself."""
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] is None
    assert FORMS[kind][1](choice["text"]), choice["text"]


# A greedy text without bound repeats itself.
@pytest.mark.parametrize("kind, temperature", [
    (kind, temperature) for kind in FORMS for temperature in (0, 1) if temperature or kind != "json_object"])
def test_texts_have_their_form(server, kind, temperature):
    form = FORMS[kind][0]
    for seed in range(4 if temperature else 1):
        choice, = write(server, form, temperature=temperature, seed=seed)
        check(kind, choice)


@pytest.mark.parametrize("kind, form", NAMES)
def test_every_name_of_a_form_is_the_same(server, kind, form):
    assert write(server, form, seed=5) == write(server, FORMS[kind][0], seed=5)
    message = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 400, "seed": 5}
    reply = server.post(CHAT, {**message, **form})
    assert reply.status_code == 200, reply.text
    choice = reply.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert FORMS[kind][1](choice["message"]["content"])


def test_none_is_free(server):
    free = write(server, {}, max_tokens=12)
    for nothing in ({"response_format": {"type": "text"}}, {"structured_outputs": {}},
                    {"guided_choice": []}, {"regex": ""}, {"structured_outputs": {"regex": None}}):
        assert write(server, nothing, max_tokens=12) == free


TOO_LARGE = re.compile(r"an automaton of \d+ states can read|at most \d+ states|takes more than \d+ steps|"
                       "the grammar is ambiguous")


def is_too_large(message):
    return TOO_LARGE.search(message)


def write_many(server, field, make, check_text, count, may_refuse=is_too_large):
    """One text of each of so many random forms. Only max_tokens may cut it off; a likely EOS keeps
    texts without bound short. A few expressions are too large for an automaton, or have too many
    readings of their text, and are refused."""
    eos = server.post("/tokenize", {"prompt": server.get("/tokenizer_info").json()["eos_token"]})
    likely = {str(eos.json()["tokens"][-1]): 5}

    def write_one(number):
        form = make(random.Random(SEED * 1000003 + number))
        reply = server.post("/v1/completions", {
            "prompt": PROMPT, "max_tokens": 600, "temperature": 1, "seed": number, "logit_bias": likely,
            field: form}, timeout=600 * harness.SLOWNESS)
        if reply.status_code == 400 and may_refuse(reply.json()["error"]["message"]):
            return "refused"
        assert reply.status_code == 200, (form, reply.text)
        choice, = reply.json()["choices"]
        if choice["finish_reason"] == "stop":
            check_text(choice["text"], form)
        return choice["finish_reason"]

    with ThreadPoolExecutor(32) as pool:
        reasons = list(pool.map(write_one, range(count)))
    whole, cut, refused = (reasons.count(reason) for reason in ("stop", "length", "refused"))
    print(f"{server.model_id}, seed {SEED}: of {count} {field} {whole} are whole, max_tokens cut {cut} off, "
          f"{refused} are refused")
    assert whole + cut + refused == count and cut <= count / 4 and refused <= count / 20


@pytest.fixture(scope="module", params=MODELS)
def any_model(server, tmp_path_factory, request):
    from conftest import finish, start
    if request.param == harness.shipped_model():
        yield server
        return
    running = start(tmp_path_factory.mktemp("another"), model=request.param)
    yield running
    finish(running)


def test_random_schemas(any_model):
    write_many(any_model, "guided_json", random_schema, check_json, SCHEMAS)


def check_written(text, schema):
    assert not faults_of(text, schema), (text, schema)


def test_the_table_of_types_has_what_may_be_refused():
    text = (harness.ROOT / "lib/grammar/grammar.md").read_text()
    table = text.partition("**Types of pydantic and zod.**")[2].partition("\n\nA schema")[0]
    refused = [row for row in table.splitlines() if "refused" in row]
    assert all(any(f"`{keyword}`" in row for row in refused) for keyword in REFUSED)


def test_schemas_as_pydantic_and_zod_write_them(any_model):
    write_many(any_model, "guided_json", random_library_schema, check_written, WRITTEN,
               lambda message: refused_keyword(message) in (None, *REFUSED))


def test_random_regexes(any_model):
    write_many(any_model, "guided_regex", random_regex, check_regex, REGEXES)


# Errors

@pytest.mark.parametrize("code, fields, words", [
    ("invalid_value", {"regex": "a(b"}, "regex: "),
    ("invalid_value", {"guided_grammar": "root ::= other"}, "guided_grammar: "),
    ("invalid_value", {"guided_choice": [7]}, "guided_choice: "),
    ("invalid_value", {"guided_json": {"properties": {"a": {"pattern": "("}}, "type": "object"}},
     "properties.a"),
    ("invalid_value", {"guided_json": {"properties": {"b": {"uniqueItems": 1}}}},
     "properties.b.uniqueItems"),
    ("unsupported_parameter", {"guided_json": {"properties": {"b": {"uniqueItems": True}}}},
     "properties.b.uniqueItems"),
    ("unsupported_parameter", {"guided_json": {"not": {"const": 1}}}, "not"),
    ("invalid_value", {"response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "objekt"}}}}, "objekt"),
    ("invalid_value", {"guided_json": "{"}, "guided_json: "),
    ("unsupported_parameter", {"structured_outputs": {"choices": ["a"]}}, "choices"),
    ("invalid_value", {"response_format": {"type": "json_object"}, "guided_regex": "a"},
     "not allowed with response_format"),
])
def test_refused(server, code, fields, words):
    error = server.refuse(400, prompt=PROMPT, **fields)
    assert error["code"] == code and words in error["message"]
    assert error["param"] == list(fields)[-1] and error["param"] in error["message"]
    reply = server.post(CHAT, {"messages": [{"role": "user", "content": PROMPT}], **fields})
    assert check_error(reply, 400, code)["message"] == error["message"]


def test_what_no_text_can_be_is_refused(server):
    error = server.refuse(400, prompt=PROMPT, guided_json=False)
    assert (error["code"], error["param"]) == ("unsupported_parameter", "guided_json")
    error = server.refuse(400, prompt=PROMPT, guided_choice=["a", "b"], min_tokens=9, max_tokens=20)
    assert (error["code"], error["param"]) == ("invalid_value", "guided_choice")
    assert "no token is left that may come after" in error["message"]


def test_where_nothing_may_come_the_text_fails_alone(server):
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(write, server, FORMS["json"][0], seed=seed) for seed in range(3)]
        error = server.refuse(400, prompt=PROMPT, guided_choice=[" red"], min_tokens=15, max_tokens=15)
        assert error["code"] == "invalid_value" and error["param"] == "guided_choice"
        assert "no token is left that may come after" in error["message"]
        for other in others:
            check("json", other.result()[0])
    frames = server.stream_bytes(prompt=PROMPT, guided_choice=[" red"], min_tokens=15, max_tokens=15)
    last = json.loads(frames.split(b"\n\n")[-3][len(b"data: "):])
    assert last["error"]["code"] == "invalid_value" and last["error"]["param"] == "guided_choice"


# With what else a request may say

@pytest.mark.parametrize("kind", FORMS)
def test_a_stream_is_the_whole_text(server, kind):
    for seed in range(3):
        fields = {"prompt": PROMPT, "max_tokens": 400, "temperature": 1, "top_p": 1, "seed": seed,
                  **FORMS[kind][0]}
        whole, = server.complete(**fields)["choices"]
        frames = server.stream(**fields)
        assert text_of(frames) == whole["text"]
        assert frames[-1]["choices"][0]["finish_reason"] == whole["finish_reason"] == "stop"


def test_each_choice_has_its_own_text(server):
    choices = write(server, FORMS["json"][0], n=4, prompt=[PROMPT, "Once"])
    assert len(choices) == 8
    for choice in choices:
        check("json", choice)
    assert len({choice["text"] for choice in choices}) > 1
    alone, = write(server, FORMS["json"][0])
    assert choices[0]["text"] == alone["text"]


def test_a_text_is_the_same_whatever_runs_beside_it(server):
    jobs = [FORMS["json"][0], FORMS["regex"][0], {"guided_json": random_schema(random.Random(3))}, {},
            FORMS["choice"][0], FORMS["grammar"][0], {"guided_regex": "[a-z ]{60}"}, FORMS["json"][0]]

    def run(number):
        fields = {"logprobs": 3, "return_token_ids": True, "seed": number, "max_tokens": 80,
                  "temperature": number % 2}
        return write(server, jobs[number], cache_salt=f"alone {number}", **fields)

    alone = [run(number) for number in range(len(jobs))]
    for _ in range(3):
        with ThreadPoolExecutor(len(jobs)) as pool:
            assert list(pool.map(run, range(len(jobs)))) == alone


def test_logprobs_are_of_the_untouched_logits(server):
    """The tokens of a constrained text as those of a prompt, whose log-probabilities nothing bends."""
    choice, = write(server, FORMS["json"][0], logprobs=2, return_token_ids=True, seed=7)
    ids = server.post("/tokenize", {"prompt": PROMPT}).json()["tokens"]
    echo = server.complete(prompt=ids + choice["token_ids"], max_tokens=0, echo=True, logprobs=2)
    echoed = echo["choices"][0]["logprobs"]["token_logprobs"][len(ids):]
    assert echoed == choice["logprobs"]["token_logprobs"]


def test_with_an_echo(server):
    plain, = write(server, FORMS["regex"][0])
    echoed, = write(server, FORMS["regex"][0], echo=True)
    assert echoed["text"] == PROMPT + plain["text"]


def test_stop_strings_cut_the_text(server):
    choice, = write(server, {"guided_choice": ["one, two"]}, stop=",")
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("one", "stop", ",")


def test_stop_tokens_come_where_the_text_is_whole_or_has_them(server):
    comma, = server.post("/tokenize", {"prompt": ","}).json()["tokens"]
    fields = {"stop_token_ids": [comma], "logit_bias": {str(comma): 100}}
    choice, = write(server, {"guided_choice": ["one, two"]}, **fields)
    assert (choice["text"], choice["stop_reason"]) == ("one", comma)
    choice, = write(server, {"guided_regex": "ab(a{5})*"}, **fields)
    assert (choice["text"], choice["stop_reason"]) == ("ab", comma)


def test_max_tokens_cut_the_text(server):
    choice, = write(server, {"guided_choice": ["abcdefghij klmnopqrst"]}, max_tokens=2)
    assert choice["finish_reason"] == "length" and "abcdefghij klmnopqrst".startswith(choice["text"])
    ids, = [write(server, {"guided_choice": [" yes"]}, return_token_ids=True)[0]["token_ids"]]
    choice, = write(server, {"guided_choice": [" yes"]}, max_tokens=len(ids), return_token_ids=True)
    assert choice["finish_reason"] == "stop" and choice["token_ids"] == ids  # it is whole


def test_min_tokens_and_ignore_eos_keep_the_text_going(server):
    choice, = write(server, {"guided_regex": "(ab)*"}, min_tokens=20, logit_bias={"0": 100})
    assert re.fullmatch("(ab)*", choice["text"]) and len(choice["text"]) >= 20
    assert choice["finish_reason"] == "stop"
    choice, = write(server, {"guided_regex": "(ab)*"}, logit_bias={"0": 100})
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")  # the EOS token is 0
    choice, = write(server, {"guided_regex": "(ab)*"}, ignore_eos=True, max_tokens=30)
    assert choice["finish_reason"] == "length"
    choice, = write(server, {"guided_regex": "(ab){8}"}, ignore_eos=True)
    assert (choice["text"], choice["finish_reason"]) == ("ab" * 8, "stop")


@pytest.mark.parametrize("fields", [{}, {"ignore_eos": True}, {"ignore_eos": True, "echo": True},
                                    {"n": 2, "best_of": 3, "ignore_eos": True}])
def test_a_text_that_is_whole_from_the_start_ends(server, fields):
    echo = PROMPT if "echo" in fields else ""
    reply = server.complete(prompt=PROMPT, guided_choice=[""], **fields)
    choices = [(c["text"], c["finish_reason"]) for c in reply["choices"]]
    assert choices == [(echo, "stop")] * fields.get("n", 1)
    assert reply["usage"]["completion_tokens"] == 0
    if "best_of" not in fields:
        assert text_of(server.stream(prompt=PROMPT, guided_choice=[""], **fields)) == echo
    error = server.refuse(400, prompt=PROMPT, guided_choice=[""], ignore_eos=True, min_tokens=1)
    assert error["param"] == "guided_choice"


def test_bans_and_biases_act_inside_the_form(server):
    digits = {digit: server.post("/tokenize", {"prompt": digit}).json()["tokens"][-1]
              for digit in "0123456789"}
    # 100 outweighs tokens of several digits, too
    fields = {"logit_bias": {str(id): 100 if digit == "7" else -100 for digit, id in digits.items()}}
    choice, = write(server, {"guided_regex": "[0-9]{6}"}, temperature=0, **fields)
    assert choice["text"] == "777777"
    choice, = write(server, {"guided_regex": "[0-9a-f]{6}"}, allowed_token_ids=[digits["3"], digits["4"]])
    assert re.fullmatch("[34]{6}", choice["text"])
    error = server.refuse(400, prompt=PROMPT, guided_regex="[a-f]{6}", allowed_token_ids=[digits["3"]])
    assert error["param"] == "guided_regex" and "no token is left" in error["message"]


@pytest.mark.parametrize("fields", [
    {"top_k": 1}, {"top_p": 0.1}, {"min_p": 0.5}, {"typical_p": 0.2}, {"temperature": 2},
    {"repetition_penalty": 2, "presence_penalty": 2, "frequency_penalty": 2},
    {"top_k": 3, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9, "repetition_penalty": 1.1}])
def test_with_every_cut(server, fields):
    choice, = write(server, FORMS["json"][0], **fields)
    check("json", choice)


def test_a_session_is_constrained_where_it_is_asked_to_be(server):
    fields = {"session_id": "form", "return_token_ids": True}
    first, = server.complete(prompt=PROMPT, guided_choice=[" daughter:"], max_tokens=20, **fields)["choices"]
    assert first["text"] == " daughter:"
    second = server.complete(session_id="form", prompt="", max_tokens=5, temperature=0)
    third = server.complete(session_id="form", prompt=" and", max_tokens=200, **FORMS["json"][0])
    check("json", third["choices"][0])
    # the drawn tokens, which need not be those that the tokenizer makes of their text
    whole = server.complete(prompt=first["prompt_token_ids"] + first["token_ids"], max_tokens=5,
                            temperature=0)
    assert whole["choices"][0]["text"] == second["choices"][0]["text"]
    assert server.http.delete("/v1/sessions/form").status_code == 204


def test_what_is_not_enforced_is_counted(server):
    schema = {"type": "string", "format": "uri", "maxLength": 3, "x-order": 1, "description": "d"}
    names = ("format", "x-", "nullable")
    before = [server.metric("regla_schema_annotations_total", keyword=name) for name in names]
    for _ in range(2):
        choice, = write(server, {"guided_json": schema})
        assert len(json.loads(choice["text"])) <= 3
    after = [server.metric("regla_schema_annotations_total", keyword=name) for name in names]
    assert [b - a for a, b in zip(before, after)] == [2, 2, 0]


# The cache of grammars

def test_equal_constraints_are_compiled_once(server):
    form = {"guided_choice": ["only here"]}
    compiled, hits = (server.metric(f"regla_grammar{name}_total") for name in ("s_compiled", "_hits"))
    masks, seconds, held = (server.metric(f"regla_{name}")
                            for name in ("masks_total", "mask_seconds_total", "grammar_bytes"))
    for _ in range(3):
        choice, = write(server, form, return_token_ids=True, temperature=0)
    write(server, {"structured_outputs": {"choice": ["only here"]}}, n=2, temperature=0)
    assert server.metric("regla_grammars_compiled_total") == compiled + 1
    assert server.metric("regla_grammar_hits_total") == hits + 3
    assert server.metric("regla_masks_total") == masks + 5 * len(choice["token_ids"])
    assert server.metric("regla_mask_seconds_total") > seconds
    assert server.metric("regla_grammar_bytes") != held


def test_grammars_take_no_more_than_half_of_the_memory_for_bodies(server_factory):
    server = server_factory(model=harness.shipped_model(), max_body_memory="32M")
    for number in range(12):
        choice, = write(server, {"guided_choice": [f"number {number}"]})
        assert choice["text"] == f"number {number}"
    wait_until(lambda: 0 < server.metric("regla_grammar_bytes") <= 16 << 20, "the last one's request ends")
    assert server.metric("regla_grammars_compiled_total") == 12


def test_a_grammar_that_has_no_room_is_refused(server_factory):
    server = server_factory(model=harness.shipped_model(), max_body_memory="1M", max_body_bytes="64K")
    error = check_error(server.post("/v1/completions", {"prompt": PROMPT, "guided_choice": ["a"]}), 413,
                        "request_too_large", "guided_choice")
    assert "--max-body-memory" in error["message"]
    assert server.metric("regla_grammar_bytes") == 0


@pytest.mark.long
def test_a_turn_makes_few_masks_that_take_long(server_factory):
    """Of 16 texts at once. The others wait, and are what they are without it."""
    server = server_factory(model=harness.shipped_model())
    form = {"guided_grammar": "root ::= " + "|".join(['"#" [B-Z]'] * 15000)}
    alone = [write(server, form, seed=seed)[0]["text"] for seed in range(8)]
    steps = server.metric("regla_engine_steps_total")
    choices = write(server, form, n=16)
    assert all(re.fullmatch("#[B-Z]", choice["text"]) for choice in choices)
    assert server.metric("regla_engine_steps_total") - steps >= 5
    with ThreadPoolExecutor(8) as pool:
        beside = pool.map(lambda seed: write(server, form, seed=seed)[0]["text"], range(8))
        assert list(beside) == alone


def test_readings_are_memory_of_their_request(server_factory):
    server = server_factory(model=harness.shipped_model(), max_body_memory="12M")
    form = {"guided_grammar": "root ::= " + "|".join(['"a" [b-z]'] * 15000)}
    assert re.fullmatch("a[b-z]", write(server, form)[0]["text"])
    reply = server.post("/v1/completions", {"prompt": PROMPT, "n": 32, "temperature": 1, **form})
    assert "--max-body-memory" in check_error(reply, 503, "out_of_memory")["message"]
    wait_until(lambda: server.metric("regla_request_body_bytes") == server.metric("regla_grammar_bytes"),
               "what the request has held is given back")
    assert re.fullmatch("a[b-z]", write(server, form)[0]["text"])


# The openai client

def test_the_openai_client(server, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        age: int = pydantic.Field(ge=0, le=150)

    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": PROMPT}]
        reply = client.chat.completions.parse(model=server.model_id, messages=messages, seed=2,
                                              max_tokens=300, response_format=Person)
        person = reply.choices[0].message.parsed
        assert isinstance(person, Person) and 0 <= person.age <= 150
        reply = client.chat.completions.create(
            model=server.model_id, messages=messages, max_tokens=300, seed=3,
            response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}})
        check_json(reply.choices[0].message.content, PERSON)
        reply = client.completions.create(model=server.model_id, prompt=PROMPT, max_tokens=40,
                                          extra_body={"guided_choice": COLOURS})
        assert reply.choices[0].text in COLOURS


def test_a_client_that_leaves_ends_its_text(server):
    before = server.metric("regla_requests_total", finish_reason="cancelled")
    with server.connect() as connection:
        harness.begin_stream(connection, prompt=PROMPT, guided_regex="[a-z ]*", ignore_eos=True)
    wait_until(lambda: server.metric("regla_requests_total", finish_reason="cancelled") > before,
               "the text ends")
    server.wait_idle()


def test_frames_of_a_chat(server):
    reply = server.post(CHAT, {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 300,
                               "stream": True, "seed": 4, **FORMS["json"][0]})
    frames = read_frames(reply.content)
    text = "".join(choice["delta"].get("content") or "" for frame in frames for choice in frame["choices"])
    check_json(text, PERSON)
