/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/questions.h"
#include "lib/base/file.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER REGLA_SOURCE_DIR "/tests/data/questions/"

static bool judged(const struct questions *questions, size_t i, const char *answer)
{
    struct error err = ERROR_INIT;
    bool right = false;
    cr_assert_eq(questions_judge(questions, i, answer, strlen(answer), &right, &err), 0, "%s",
                 err.message);
    return right;
}

/* An answer to a question that accepts one word. */
static bool accepts(const char *word, const char *answer)
{
    struct questions questions = {0};
    struct error err = ERROR_INIT;
    char line[256];
    snprintf(line, sizeof line, "{\"question\": \"?\", \"accepted\": [\"nothing\", \"%s\"]}", word);
    cr_assert_eq(questions_read(&questions, "test", line, strlen(line), &err), 0, "%s",
                 err.message);
    bool right = judged(&questions, 0, answer);
    questions_clear(&questions);
    return right;
}

Test(questions, an_accepted_word_stands_as_a_whole_word)
{
    static const struct {
        const char *word, *answer;
        bool right;
    } cases[] = {
        {"Paris", "The capital of France is Paris.", true},
        {"Paris", "PARIS", true},
        {"Paris", "paris!", true},
        {"Paris", "It's \"Paris\", of course", true},
        {"Paris", "Paris's", true},
        {"Paris", "in-Paris-or-so", true},
        {"Paris", "Parisian", false},
        {"Paris", "Comparis", false},
        {"Paris", "Paris_", false},
        {"Paris", "Paris2", false},
        {"Paris", "Parisé Pariser éParis", false},
        {"Paris", "Parisian: Paris", true},
        {"Paris", "P a r i s", false},
        {"Paris", "Pari", false},
        {"Paris", "", false},
        {"5", "2 + 3 = 5", true},
        {"5", "15", false},
        {"5", "5th", false},
        {"5", "5.", true},
        {"E", "e", true},
        {"E", "The letter is F", false},
        {"twenty-four", "There are Twenty-Four hours", true},
        {"twenty-four", "twenty-fourth", false},
        {"one hundred and one", "One hundred and one.", true},
        {"Österreich", "ÖSTERREICH", true},
        {"Österreich", "das österreichische", false},
        {"東京", "答えは 東京 です", true},
        {"東京", "東京都", false},
        {"aa", "aaa aa", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_eq(accepts(cases[i].word, cases[i].answer), cases[i].right, "%s in %s",
                     cases[i].word, cases[i].answer);
}

static void expect_refused(const char *text, size_t length, const char *message)
{
    struct questions questions = {0};
    struct error err = ERROR_INIT;
    cr_expect_eq(questions_read(&questions, "mine.jsonl", text, length, &err), -1, "%s", message);
    cr_expect(strstr(err.message, message) != NULL, "expected \"%s\" in \"%s\"", message,
              err.message);
    questions_clear(&questions);
}

Test(questions, what_is_none_is_refused_by_its_place)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "mine.jsonl: expected a question a line, got none"},
        {"\n \r\n", "mine.jsonl: expected a question a line, got none"},
        {"[]", "mine.jsonl, line 1: expected an object, got a list"},
        {"\n{\"question\": \"?\"", "mine.jsonl, line 2: line 1"},
        {"{\"question\": \"?\"}", "mine.jsonl, line 1: accepted"},
        {"{\"accepted\": [\"a\"]}", "mine.jsonl, line 1: question"},
        {"{\"question\": 1, \"accepted\": [\"a\"]}", "mine.jsonl, line 1: question"},
        {"{\"question\": \"\", \"accepted\": [\"a\"]}", "question: expected a text, got an empty"},
        {"{\"question\": \"?\", \"accepted\": \"a\"}", "mine.jsonl, line 1: accepted"},
        {"{\"question\": \"?\", \"accepted\": []}", "accepted: expected at least one word"},
        {"{\"question\": \"?\", \"accepted\": [\"a\", 1]}",
         "accepted[1]: expected a word, got a number"},
        {"{\"question\": \"?\", \"accepted\": [\"...\"]}",
         "accepted[0]: expected a word, got \"...\""},
        {"{\"question\": \"?\", \"accepted\": [\"a\"], \"answer\": \"a\"}", "\"answer\""},
        {"{\"question\": \"?\", \"accepted\": [\"a\"]} {}", "mine.jsonl, line 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused(cases[i].text, strlen(cases[i].text), cases[i].message);
    static const char other[] = "{\"question\": \"\xff\", \"accepted\": [\"a\"]}";
    expect_refused(other, sizeof other - 1, "mine.jsonl, line 1");
    static const char nul[] = "{\"question\": \"?\", \"accepted\": [\"a\"]}\n\0";
    expect_refused(nul, sizeof nul - 1, "mine.jsonl, line 2");
}

Test(questions, lines_end_in_any_way)
{
    static const char text[] = "{\"question\": \"a?\", \"accepted\": [\"a\"]}\r\n\n"
                               "{\"question\": \"b?\", \"accepted\": [\"b\"]}";
    struct questions questions = {0};
    struct error err = ERROR_INIT;
    size_t length;
    cr_assert_eq(questions_read(&questions, "t", text, sizeof text - 1, &err), 0, "%s",
                 err.message);
    cr_expect_eq(questions_count(&questions), 2);
    cr_expect_str_eq(questions_text(&questions, 1, &length), "b?");
    cr_expect_eq(length, 2);
    questions_clear(&questions);
}

static json_t *recorded(void)
{
    json_error_t problem;
    json_t *answers = json_load_file(FOLDER "answers.json", 0, &problem);
    cr_assert(answers != NULL, "%s", problem.text);
    return answers;
}

/* The recorded answers, with others in the place of some. */
static size_t right_of(const struct questions *questions, const json_t *run, size_t first,
                       const char *planted, size_t second, const char *planted_too)
{
    const json_t *answers = json_object_get(run, "answers");
    size_t right = 0;
    cr_assert_eq(json_array_size(answers), questions_count(questions));
    for (size_t i = 0; i < questions_count(questions); i++) {
        const char *answer = json_string_value(json_array_get(answers, i));
        if (planted && (i == first || i == second)) {
            cr_expect(judged(questions, i, answer), "what is planted over was right: %s", answer);
            answer = i == first ? planted : planted_too;
        }
        right += judged(questions, i, answer);
    }
    return right;
}

static size_t number_of(const struct questions *questions, const char *text)
{
    size_t length;
    for (size_t i = 0; i < questions_count(questions); i++)
        if (strcmp(questions_text(questions, i, &length), text) == 0)
            return i;
    cr_assert_fail("%s", text);
    return 0;
}

/* Those of SmolLM2 (tests/data/questions/README.md): each run has as many right as it had, and two
 * fewer with two wrong answers among them that have the accepted word inside a longer one. */
Test(questions, planted_wrong_answers_are_judged_wrong)
{
    struct questions questions = {0};
    struct error err = ERROR_INIT;
    json_t *answers = recorded(), *runs = json_object_get(answers, "runs"), *run;
    const char *name;
    cr_assert_eq(questions_open(&questions, NULL, &err), 0, "%s", err.message);
    cr_assert_eq(questions_count(&questions), 100);
    size_t berlin = number_of(&questions, "What is the capital of Germany?"),
           cold = number_of(&questions, "What is the opposite of hot?");
    cr_assert(json_object_size(runs) >= 3);
    json_object_foreach(runs, name, run)
    {
        size_t right = (size_t)json_integer_value(json_object_get(run, "right"));
        cr_expect_eq(right_of(&questions, run, 0, NULL, 0, NULL), right, "%s", name);
        cr_expect_eq(right_of(&questions, run, berlin, "Berliners say berlin_1, BERLINISH.", cold,
                              "Scolding coldness, colder, ice_cold."),
                     right - 2, "%s", name);
        cr_expect_eq(right_of(&questions, run, berlin, "(BERLIN)", cold, "as-COLD-as-ice"), right,
                     "%s", name);
    }
    json_decref(answers);
    questions_clear(&questions);
}

/* The file beside the answers is the one in the program. */
Test(questions, the_file_is_what_the_program_has)
{
    struct questions questions = {0};
    struct error err = ERROR_INIT;
    char *text;
    size_t size;
    cr_assert_eq(file_read(FOLDER "questions.jsonl", 1 << 20, &text, &size, &err), 0, "%s",
                 err.message);
    cr_expect(size == strlen(questions_built_in) && memcmp(text, questions_built_in, size) == 0);
    free(text);
    cr_expect_eq(questions_open(&questions, FOLDER "questions.jsonl", &err), 0, "%s", err.message);
    questions_clear(&questions);
}
