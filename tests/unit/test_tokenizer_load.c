/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json files that are refused, and what the refusal says; lookups; threads. */
#include "lib/text/tokenizer.h"
#include "tests/unit/token_id.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODEL "'model':{'type':'BPE','vocab':{'a':0,'b':1,'ab':2},'merges':['a b']}"

/* What an added token must have, but for its content and id, and but for `special`. */
#define FLAGS "'single_word':false,'lstrip':false,'rstrip':false,'normalized':false"
#define PLAIN FLAGS ",'special':false"
#define BYTE_LEVEL "{'type':'ByteLevel','add_prefix_space':true,'trim_offsets':true}"

/* ' stands for ". */
static int load(struct tokenizer **tokenizer, const char *json, struct error *err)
{
    char *text = strdup(json);
    for (char *at = text; (at = strchr(at, '\''));)
        *at = '"';
    int failed = tokenizer_load(tokenizer, text, strlen(text), err);
    free(text);
    return failed;
}

struct refusal {
    const char *json;
    const char *message; /* a part of it */
    enum error_code code;
};

static const struct refusal refusals[] = {
    {"", "line 1", ERROR_INVALID},
    {"{'model':{'vocab':{'a':0}", "line 1", ERROR_INVALID},
    {"[]", "expected an object", ERROR_INVALID},
    {"{'version':'2.0'," MODEL "}", "version: expected \"1.0\", got \"2.0\"", ERROR_UNSUPPORTED},
    {"{}", "model: expected an object", ERROR_INVALID},
    {"{'model':{'type':'WordPiece','vocab':[]}}", "\"WordPiece\"", ERROR_UNSUPPORTED},
    {"{'model':{'type':'World','vocab':{'a':0}}}", "\"World\"", ERROR_UNSUPPORTED},
    {"{'model':{'type':'Unigram','vocab':{'a':0}}}", "model: vocab: expected", ERROR_INVALID},
    {"{'model':{'type':'Unigram','vocab':[['a',-1],['b']]}}",
     "model: vocab[1]: expected [token, score]", ERROR_INVALID},
    {"{'model':{'type':'Unigram','vocab':[['a','-1']]}}",
     "model: vocab[0]: expected [token, score]", ERROR_INVALID},
    {"{'model':{'type':'Unigram','vocab':[['a',-1],['a',-2]]}}", "expected one id, got 0 and 1",
     ERROR_INVALID},
    {"{'model':{'type':'Unigram','unk_id':1,'vocab':[['a',-1]]}}", "model: unk_id: expected",
     ERROR_INVALID},
    {"{'model':{'type':'Unigram','unk_id':0,'vocab':[]}}", "model: unk_id: expected",
     ERROR_INVALID},
    {"{'model':{'type':'Unigram','byte_fallback':null,'vocab':[]}}", "model: byte_fallback",
     ERROR_INVALID},
    {"{'normalizer':{'type':'Precompiled'}," MODEL "}", "precompiled_charsmap", ERROR_INVALID},
    {"{'normalizer':{'type':'Precompiled','precompiled_charsmap':'A*=='}," MODEL "}",
     "normalizer: precompiled_charsmap: expected Base64", ERROR_INVALID},
    {"{'normalizer':{'type':'Precompiled','precompiled_charsmap':'CAAAAAAA'}," MODEL "}",
     "expected the size of a trie in 4 bytes and the trie, got 6 bytes and size 8", ERROR_INVALID},
    {"{'normalizer':{'type':'Precompiled','precompiled_charsmap':'BAAAAAAAAAD/'}," MODEL "}",
     "expected UTF-8 behind the trie, got byte 0xFF", ERROR_INVALID},
    {"{'model':{'vocab':{'a':0,'a':1},'merges':[]}}", "duplicate object key", ERROR_INVALID},
    {"{'model':{'vocab':{'a\\ud800':0},'merges':[]}}", "line 1", ERROR_INVALID},
    {"{'model':{'vocab':{'a\xFF':0},'merges':[]}}", "line 1", ERROR_INVALID},
    {"{'model':{'vocab':['a'],'merges':[]}}", "vocab: expected an object", ERROR_INVALID},
    {"{'model':{'vocab':{'a':-1},'merges':[]}}", "\"a\": expected an id in [0, ", ERROR_INVALID},
    {"{'model':{'vocab':{'a':4194304},'merges':[]}}", "\"a\": expected an id in [0, ",
     ERROR_INVALID},
    {"{'model':{'vocab':{'a':1e3},'merges':[]}}", "\"a\": expected an id in [0, ", ERROR_INVALID},
    {"{'model':{'vocab':{'a':9999999999999999999999},'merges':[]}}", "line 1", ERROR_INVALID},
    {"{'model':{'vocab':{'a':0,'b':0},'merges':[]}}", "\"b\": id 0 is already that of \"a\"",
     ERROR_INVALID},
    {"{'model':{'vocab':{'a':0}}}", "merges: expected an array", ERROR_INVALID},
    {"{'model':{'vocab':{'a':0},'merges':['a']}}", "merges[0]: expected \"a b\"", ERROR_INVALID},
    {"{'model':{'vocab':{'a':0},'merges':['a a a']}}", "merges[0]: expected", ERROR_INVALID},
    {"{'model':{'vocab':{'a':0},'merges':[['a']]}}", "merges[0]: expected", ERROR_INVALID},
    {"{'model':{'vocab':{'a':0},'merges':[['a',1]]}}", "merges[0]: expected", ERROR_INVALID},
    {"{'model':{'vocab':{'a':0},'merges':['a b']}}", "merges[0]: \"b\" is not in the vocabulary",
     ERROR_INVALID},
    {"{'model':{'vocab':{'a':0,'':1},'merges':['a ']}}", "merges[0]: \"\" is not", ERROR_INVALID},
    {"{'model':{'vocab':{'a':0},'merges':['a a']}}", "merges[0]: \"aa\" is not in the vocabulary",
     ERROR_INVALID},
    {"{'model':{'vocab':{'a':0},'merges':[],'unk_token':'u'}}", "unk_token: \"u\" is not in",
     ERROR_INVALID},
    {"{'model':{'vocab':{'a':0},'merges':[],'dropout':0.5}}", "dropout: expected null",
     ERROR_UNSUPPORTED},
    {"{'model':{'vocab':{'a':0},'merges':[],'end_of_word_suffix':'</w>'}}",
     "end_of_word_suffix: expected null, got \"</w>\"", ERROR_UNSUPPORTED},
    {"{'model':{'vocab':{'a':0},'merges':[],'byte_fallback':1}}",
     "byte_fallback: expected true or false, got 1", ERROR_INVALID},
    {"{'added_tokens':{}," MODEL "}", "added_tokens: expected an array", ERROR_INVALID},
    {"{'added_tokens':[{'id':7}]," MODEL "}",
     "added_tokens[0]: token: content: expected a string, got nothing", ERROR_INVALID},
    {"{'added_tokens':[{'content':'x'," PLAIN "}]," MODEL "}",
     "added_tokens[0]: token: id: expected an integer in [0, 4294967295], got nothing",
     ERROR_INVALID},
    {"{'added_tokens':[{'content':'x','id':3," FLAGS "}]," MODEL "}",
     "added_tokens[0]: token: special: expected true or false, got nothing", ERROR_INVALID},
    {"{'added_tokens':null," MODEL "}", "added_tokens: expected an array", ERROR_INVALID},
    {"{'added_tokens':[{'content':'x','id':3," PLAIN "}],"
     "'model':{'vocab':{'a':0,'b':2},'merges':[]}}",
     "\"x\": the next free id is 2 to the library, but the vocabulary, whose ids have a gap, gives "
     "that to \"b\"",
     ERROR_UNSUPPORTED},
    {"{'added_tokens':[{'content':' ','id':3,'single_word':false,'lstrip':false,'rstrip':false,"
     "'normalized':true,'special':false}],'normalizer':{'type':'Strip','strip_left':true,"
     "'strip_right':true}," MODEL "}",
     "expected 1 to 512 bytes", ERROR_INVALID},
    {"{'added_tokens':[{'content':'x','id':3,'single_word':false,'lstrip':false,'rstrip':false,"
     "'normalized':true,'special':false},{'content':'X','id':4,'single_word':false,'lstrip':false,"
     "'rstrip':false,'normalized':true,'special':false}],"
     "'normalizer':{'type':'Lowercase'}," MODEL "}",
     "ids 3 and 4 are the same text", ERROR_INVALID},
    {"{'truncation':3," MODEL "}", "truncation: expected an object or null, got ", ERROR_INVALID},
    {"{'padding':{'strategy':'Longest'}," MODEL "}",
     "padding: strategy: unknown strategy \"Longest\"", ERROR_INVALID},
    {"{'model':{'vocab':{'a':0},'merges':[],'dropout':'0'}}", "dropout: expected null",
     ERROR_UNSUPPORTED},
    {"{'model':{'vocab':{'a':0,'b':1,'ab':2},'merges':['a b',['a','b']]}}",
     "merges[1]: expected strings only, or pairs only", ERROR_INVALID},
    {"{'normalizer':{'type':'Nmt'}," MODEL "}",
     "normalizer: type: unknown type \"Nmt\" (known: NFC", ERROR_UNSUPPORTED},
    {"{'normalizer':{'type':'Sequence','normalizers':[{'type':'NFC'},{'type':'Nmt'}]}," MODEL "}",
     "normalizers[1]: normalizer: type: unknown type \"Nmt\"", ERROR_UNSUPPORTED},
    {"{'normalizer':{'type':'Replace','pattern':{'Regex':'('},'content':''}," MODEL "}",
     "normalizer: pattern \"(\": ", ERROR_UNSUPPORTED},
    {"{'normalizer':{'type':'Replace','pattern':'a','content':''}," MODEL "}",
     "pattern: expected {\"String\": text} or {\"Regex\": text}, got a string", ERROR_INVALID},
    {"{'normalizer':{'type':'Replace','pattern':{'String':''},'content':''}," MODEL "}",
     "pattern: expected 1 to", ERROR_UNSUPPORTED},
    {"{'pre_tokenizer':{'type':'BertPreTokenizer'}," MODEL "}",
     "pre_tokenizer: type: unknown type \"BertPreTokenizer\"", ERROR_UNSUPPORTED},
    {"{'pre_tokenizer':{'type':'Sequence','pretokenizers':[" BYTE_LEVEL ","
     "{'type':'Metaspace','replacement':'_','prepend_scheme':'first'}]}," MODEL "}",
     "pretokenizers[1]: pre_tokenizer: prepend_scheme \"first\" behind a step", ERROR_UNSUPPORTED},
    {"{'pre_tokenizer':{'type':'ByteLevel','add_prefix_space':true}," MODEL "}",
     "pre_tokenizer: trim_offsets: expected true or false, got nothing", ERROR_INVALID},
    {"{'pre_tokenizer':{'type':'Punctuation','behavior':'Sometimes'}," MODEL "}",
     "behavior: unknown behavior \"Sometimes\"", ERROR_UNSUPPORTED},
    {"{'pre_tokenizer':{'type':'Split','pattern':{'String':'x'},'invert':false,'behavior':'"
     "Sideways'}," MODEL "}",
     "behavior: unknown behavior \"Sideways\" (known: Removed", ERROR_UNSUPPORTED},
    {"{'pre_tokenizer':{'type':'Metaspace','replacement':'ab'}," MODEL "}",
     "replacement: expected one character, got \"ab\"", ERROR_INVALID},
    {"{'pre_tokenizer':{'type':'Metaspace','replacement':'_','prepend_scheme':'last'}," MODEL "}",
     "prepend_scheme: unknown prepend_scheme \"last\" (known: always, first, never)",
     ERROR_UNSUPPORTED},
    {"{'decoder':{'type':'WordPiece'}," MODEL "}", "decoder: type: unknown type \"WordPiece\"",
     ERROR_UNSUPPORTED},
    {"{'decoder':{'type':'Sequence','decoders':[{'type':'Fuse'},{'type':'ByteFallback'}]}," MODEL
     "}",
     "decoders[1]: decoder: ByteFallback in this place", ERROR_UNSUPPORTED},
    {"{'post_processor':{'type':'Unheard'}," MODEL "}",
     "post_processor: type: unknown type \"Unheard\"", ERROR_UNSUPPORTED},
    {"{'post_processor':{'type':'TemplateProcessing','pair':[],'special_tokens':{},"
     "'single':[{'SpecialToken':{'id':'x','type_id':0}}]}," MODEL "}",
     "special_tokens: \"x\": expected an id, a list of ids", ERROR_INVALID},
    {"{'post_processor':{'type':'TemplateProcessing','pair':[],"
     "'single':[{'SpecialToken':{'id':'x','type_id':0}}],"
     "'special_tokens':{'x':{'id':'x','ids':[3],'tokens':['x']}}}," MODEL "}",
     "expected the id of a token, got 3", ERROR_INVALID},
    {"{'post_processor':{'type':'TemplateProcessing','pair':[],'special_tokens':{},'single':[]}"
     "," MODEL "}",
     "single: expected special tokens around one sequence A", ERROR_UNSUPPORTED},
    {"{'post_processor':{'type':'TemplateProcessing','single':[]}," MODEL "}",
     "pair: expected a list, got nothing", ERROR_INVALID},
    {"{'post_processor':{'type':'ByteLevel','add_prefix_space':true,'trim_offsets':true,"
     "'cls':['a',0],'sep':['b',1]}," MODEL "}",
     "post_processor: cls: not a key of ByteLevel", ERROR_UNSUPPORTED},
    {"{'post_processor':{'type':'ByteLevel','add_prefix_space':true,'trim_offsets':true,"
     "'use_regex':'yes'}," MODEL "}",
     "post_processor: use_regex: expected true or false, got \"yes\"", ERROR_INVALID},
    {"{'post_processor':{'type':'Sequence','processors':["
     "{'type':'BertProcessing','cls':['a',0],'sep':['b',1]},"
     "{'type':'BertProcessing','cls':['a',0],'sep':['b',1]}]}," MODEL "}",
     "processors: BertProcessing behind one that adds tokens", ERROR_UNSUPPORTED},
};

Test(tokenizer_load, refusals_name_the_place)
{
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct error err = ERROR_INIT;
        struct tokenizer *tokenizer = NULL;
        cr_assert_eq(load(&tokenizer, refusals[i].json, &err), -1, "accepted: %s",
                     refusals[i].json);
        cr_assert_null(tokenizer);
        cr_assert_not_null(strstr(err.message, refusals[i].message),
                           "%s\n gives \"%s\"\nnot \"%s\"", refusals[i].json, err.message,
                           refusals[i].message);
        cr_assert_eq(err.code, refusals[i].code, "%s", err.message);
    }
}

Test(tokenizer_load, deep_nesting_is_refused)
{
    enum { DEPTH = 100000 };
    char *json = malloc(DEPTH + 1);
    memset(json, '[', DEPTH);
    json[DEPTH] = 0;
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    cr_assert_eq(tokenizer_load(&tokenizer, json, DEPTH, &err), -1);
    cr_assert_not_null(strstr(err.message, "depth"), "%s", err.message);
    free(json);
}

Test(tokenizer_load, missing_file_is_named)
{
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    cr_assert_eq(tokenizer_open(&tokenizer, "/nonexistent/tokenizer.json", &err), -1);
    cr_assert_str_eq(err.message,
                     "/nonexistent/tokenizer.json: cannot open: No such file or directory");
    cr_assert_eq(err.code, ERROR_IO);
    error_clear(&err);
    cr_assert_eq(tokenizer_open(&tokenizer, "/", &err), -1);
    cr_assert_eq(err.code, ERROR_IO);
}

/* Opening a FIFO that nobody writes to would wait for ever. */
Test(tokenizer_load, a_pipe_is_refused_at_once)
{
    alarm(60);
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    char directory[] = "/tmp/regla-test-XXXXXX", path[64];
    cr_assert(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    cr_assert(mkfifo(path, 0600) == 0);
    cr_expect_eq(tokenizer_open(&tokenizer, path, &err), -1);
    cr_expect_eq(err.code, ERROR_IO);
    unlink(path);
    rmdir(directory);
}

/* A file cut anywhere is refused or, where only white space is missing, complete. */
Test(tokenizer_load, truncated_file_is_refused)
{
    static const char JSON[] =
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true,"
        "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false}],"
        "\"pre_tokenizer\":{\"type\":\"Whitespace\"},\"decoder\":{\"type\":\"Fuse\"},"
        "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[[\"a\",\"b\"]]}}";
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    for (size_t length = 0; length < sizeof JSON - 1; length++) {
        error_clear(&err);
        cr_assert_eq(tokenizer_load(&tokenizer, JSON, length, &err), -1, "%zu bytes", length);
        cr_assert_eq(err.code, ERROR_INVALID);
    }
    error_clear(&err);
    cr_assert_eq(tokenizer_load(&tokenizer, JSON, sizeof JSON - 1, &err), 0, "%s", err.message);
    tokenizer_free(tokenizer);
}

Test(tokenizer_load, lookups)
{
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    cr_assert_eq(load(&tokenizer,
                      "{'added_tokens':[{'id':9,'content':'<s>','special':true," FLAGS "},"
                      "{'id':0,'content':'a'," PLAIN "}],"
                      "'decoder':" BYTE_LEVEL ",'pre_tokenizer':" BYTE_LEVEL ","
                      "'model':{'vocab':{'a':0,'\xC4\xA0':1,'\xC4\xA0"
                      "a':2,'\xC3\xA2':3},'merges':['\xC4\xA0 a']}}",
                      &err),
                 0, "%s", err.message);
    cr_assert_eq(tokenizer_size(tokenizer), 5);
    cr_assert_eq(token_id(tokenizer, "<s>"), 4);
    cr_assert_str_eq(warnings_at(tokenizer_warnings(tokenizer), 0),
                     "tokenizer.json: added_tokens: \"<s>\": its id is 4, as in Hugging Face's "
                     "library, not the 9 that is stated");
    cr_assert_null(warnings_at(tokenizer_warnings(tokenizer), 1));
    cr_assert_eq(token_id(tokenizer, "\xC4\xA0"
                                     "a"),
                 2);
    cr_assert_eq(token_id(tokenizer, "zz"), -1);
    cr_assert(tokenizer_is_special(tokenizer, 4));
    cr_assert_not(tokenizer_is_special(tokenizer, 0));
    static const int32_t NOBODY[] = {-1, 5, 10, INT32_MAX, INT32_MIN};
    size_t length;
    for (size_t i = 0; i < sizeof NOBODY / sizeof *NOBODY; i++) {
        cr_assert_not(tokenizer_is_special(tokenizer, NOBODY[i]));
        cr_assert_null(tokenizer_token_content(tokenizer, NOBODY[i]));
        tokenizer_token_bytes(tokenizer, NOBODY[i], &length);
        cr_assert_eq(length, 0);
    }
    cr_assert_str_eq(tokenizer_token_content(tokenizer, 2), "\xC4\xA0"
                                                            "a");
    cr_assert_eq(memcmp(tokenizer_token_bytes(tokenizer, 2, &length), " a", 2), 0);
    cr_assert_eq(length, 2);
    cr_assert_eq(memcmp(tokenizer_token_bytes(tokenizer, 3, &length), "\xE2", 1), 0);
    cr_assert_eq(length, 1);
    tokenizer_free(tokenizer);
}

Test(tokenizer_load, text_that_is_not_utf8_is_refused)
{
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    cr_assert_eq(load(&tokenizer, "{" MODEL "}", &err), 0, "%s", err.message);
    struct token_list ids = {0};
    cr_assert_eq(token_list_push(&ids, 77, &err), 0);
    cr_assert_eq(tokenizer_encode(tokenizer, "abc\xED\xA0\x80", 6, true, &ids, &err), -1);
    cr_assert_str_eq(err.message, "text: expected UTF-8, got byte 0xED at offset 3");
    cr_assert_eq(ids.count, 1);
    error_clear(&err);
    cr_assert_eq(tokenizer_encode(tokenizer, "ab\0ab", 5, true, &ids, &err), 0);
    cr_assert_eq(ids.count, 3, "NUL is a character like another");
    token_list_clear(&ids);
    tokenizer_free(tokenizer);
}

/* Matching that would take exponential or quadratic time ends with an error. */
Test(tokenizer_load, hostile_pattern_does_not_hang)
{
    alarm(600);
    static const char *const PATTERNS[] = {"(a*)*[bc]", "(?:a|aa)+[bc]", "(?=(a+)+[bc])"};
    enum { LENGTH = 20000 };
    char *text = malloc(LENGTH);
    memset(text, 'a', LENGTH);
    for (size_t i = 0; i < sizeof PATTERNS / sizeof *PATTERNS; i++) {
        char json[512];
        snprintf(json, sizeof json,
                 "{'pre_tokenizer':{'type':'Split','pattern':{'Regex':'%s'},"
                 "'behavior':'Isolated','invert':false}," MODEL "}",
                 PATTERNS[i]);
        struct error err = ERROR_INIT;
        struct tokenizer *tokenizer;
        cr_assert_eq(load(&tokenizer, json, &err), 0, "%s", err.message);
        struct token_list ids = {0};
        cr_assert_eq(tokenizer_encode(tokenizer, text, LENGTH, false, &ids, &err), -1, "%s",
                     PATTERNS[i]);
        cr_assert_not_null(strstr(err.message, "takes too long"), "%s", err.message);
        token_list_clear(&ids);
        tokenizer_free(tokenizer);
    }
    free(text);
}

/* Runs of combining marks in falling order, and runs of spaces around tokens that strip them: what
 * a naive sort or scan would take quadratic time for. */
/* Steps that each write 64 bytes for one: all of them would make a terabyte of it. */
Test(tokenizer_load, a_decoder_that_multiplies_is_refused)
{
    enum { STEPS = 7, BYTES = 64 };
    char text[STEPS * 200] = "{'decoder':{'type':'Sequence','decoders':[", content[BYTES + 1] = "";
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    alarm(60);
    memset(content, 'a', BYTES);
    for (int i = 0; i < STEPS; i++)
        sprintf(text + strlen(text), "%s{'type':'Replace','pattern':{'String':'a'},'content':'%s'}",
                i > 0 ? "," : "", content);
    strcat(text, "]}," MODEL "}");
    cr_assert_eq(load(&tokenizer, text, &err), -1);
    cr_expect(strstr(err.message, "decoder: \"a\": expected at most 4112 bytes, got 262144"), "%s",
              err.message);
}

Test(tokenizer_load, hostile_text_does_not_hang)
{
    alarm(300);
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    cr_assert_eq(load(&tokenizer,
                      "{'added_tokens':[{'id':3,'content':' ','single_word':false,'lstrip':false,"
                      "'rstrip':true,'normalized':false,'special':false},"
                      "{'id':4,'content':'x','single_word':false,'lstrip':true,"
                      "'rstrip':false,'normalized':false,'special':false}],"
                      "'normalizer':{'type':'NFC'}," MODEL "}",
                      &err),
                 0, "%s", err.message);
    enum { LENGTH = 2000000 };
    char *text = malloc(LENGTH);
    for (size_t i = 0; i < LENGTH; i += 4)
        memcpy(text + i,
               i / 4 % 2 ? "\xCC\x80"
                           "\xCC\xA3"
                         : "\xCC\x81"
                           "\xCD\x85",
               4);
    struct token_list ids = {0};
    cr_assert_eq(tokenizer_encode(tokenizer, text, LENGTH, false, &ids, &err), 0);
    memset(text, ' ', LENGTH);
    cr_assert_eq(tokenizer_encode(tokenizer, text, LENGTH, false, &ids, &err), 0);
    cr_assert_eq(ids.count, LENGTH);
    token_list_clear(&ids);
    free(text);
    tokenizer_free(tokenizer);
}

struct worker {
    const struct tokenizer *tokenizer;
    size_t wrong;
};

static const char TEXT[] = "The quick brown f\xC3\xB6x, 12345 times \xF0\x9F\x98\x80 over!  \n\n x";

static void *encode_often(void *argument)
{
    struct worker *worker = argument;
    for (int i = 0; i < 200; i++) {
        struct error err = ERROR_INIT;
        struct token_list ids = {0};
        char *text = NULL;
        size_t length = 0;
        if (tokenizer_encode(worker->tokenizer, TEXT, sizeof TEXT - 1, false, &ids, &err) ||
            tokenizer_decode(worker->tokenizer, ids.ids, ids.count, false, &text, &length, &err) ||
            length != sizeof TEXT - 1 || memcmp(text, TEXT, length) != 0)
            worker->wrong++;
        token_list_clear(&ids);
        free(text);
    }
    return NULL;
}

Test(tokenizer_load, many_threads_share_one_tokenizer)
{
    enum { THREADS = 8 };
    static const char *const NAMES[] = {"neox", "llama3"};
    for (size_t n = 0; n < 2; n++) {
        char path[512];
        snprintf(path, sizeof path, REGLA_SOURCE_DIR "/tests/data/tokenizer/%s.json", NAMES[n]);
        struct error err = ERROR_INIT;
        struct tokenizer *tokenizer;
        cr_assert_eq(tokenizer_open(&tokenizer, path, &err), 0, "%s", err.message);
        pthread_t threads[THREADS];
        struct worker workers[THREADS];
        for (int i = 0; i < THREADS; i++) {
            workers[i] = (struct worker){tokenizer, 0};
            cr_assert_eq(pthread_create(&threads[i], NULL, encode_often, &workers[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
            cr_assert_eq(workers[i].wrong, 0);
        }
        tokenizer_free(tokenizer);
    }
}

/* The ids of added tokens are the library's, whatever the file says. */
Test(tokenizer_load, added_tokens_take_the_next_free_ids)
{
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    cr_assert_eq(load(&tokenizer,
                      "{'added_tokens':[{'id':9,'content':'<b>'," PLAIN "},"
                      "{'id':1,'content':'<a>'," PLAIN "},{'id':7,'content':'b'," PLAIN "},"
                      "{'id':3,'content':'<b>','special':true," FLAGS "},"
                      "{'id':0,'content':''," PLAIN "}]," MODEL "}",
                      &err),
                 0, "%s", err.message);
    cr_expect_eq(token_id(tokenizer, "<b>"), 3);
    cr_expect_eq(token_id(tokenizer, "<a>"), 4);
    cr_expect_eq(token_id(tokenizer, "b"), 1);
    cr_expect_eq(tokenizer_size(tokenizer), 5);
    cr_expect(tokenizer_is_special(tokenizer, 3), "given twice: the last one counts");
    cr_expect_not_null(warnings_at(tokenizer_warnings(tokenizer), 2));
    cr_expect_null(warnings_at(tokenizer_warnings(tokenizer), 3));
    struct token_list ids = {0};
    cr_assert_eq(tokenizer_limit(tokenizer, 4, &err), 0, "%s", err.message);
    cr_expect_not_null(strstr(warnings_at(tokenizer_warnings(tokenizer), 3), "ids up to 4"));
    cr_expect_eq(tokenizer_encode(tokenizer, "a<b>", 4, true, &ids, &err), 0);
    cr_expect_eq(ids.count, 2);
    cr_expect_eq(tokenizer_encode(tokenizer, "a<a>", 4, true, &ids, &err), -1);
    cr_expect_str_eq(err.message, "text: token \"<a>\" has id 4, and the model has 4 ids");
    cr_expect_eq(ids.count, 2);
    token_list_clear(&ids);
    tokenizer_free(tokenizer);
}

Test(tokenizer_load, unigram_without_an_unknown_token_refuses_what_no_token_has)
{
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    struct token_list ids = {0};
    cr_assert_eq(
        load(&tokenizer, "{'model':{'type':'Unigram','vocab':[['a',-1],['ab',-1.5]]}}", &err), 0,
        "%s", err.message);
    cr_expect_eq(tokenizer_encode(tokenizer, "aaba", 4, false, &ids, &err), -1);
    cr_expect_str_eq(err.message, "tokenizer: no token for \"b\", and no unk_id");
    error_clear(&err);
    token_list_clear(&ids);
    tokenizer_free(tokenizer);
}

/* A chat's input does not spell special tokens, though the model has a piece of this text. */
Test(tokenizer_load, unigram_makes_no_special_token_of_input)
{
    static const char json[] =
        "{'added_tokens':[{'id':1,'content':'<s>'," FLAGS ",'special':true}],"
        "'model':{'type':'Unigram','unk_id':0,'vocab':[['u',-9],['<s>',-1],['<',-2],['s',-2],"
        "['>',-2]]}}";
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    struct token_list ids = {0};
    cr_assert_eq(load(&tokenizer, json, &err), 0, "%s", err.message);
    const struct text_span input = {0, 3};
    cr_assert_eq(tokenizer_encode_input(tokenizer, "<s><s>", 6, &input, 1, false, &ids, &err), 0);
    cr_assert_eq(ids.count, 4);
    cr_expect_arr_eq(ids.ids, ((int32_t[]){2, 3, 4, 1}), 16);
    token_list_clear(&ids);
    tokenizer_free(tokenizer);
}

/* A tokenizer whose Precompiled has "x" [count] in the place of "a": a double array by hand. */
static int load_map(struct tokenizer **tokenizer, uint32_t count, struct error *err)
{
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    enum { UNITS = 'a' + 1, MOST = 1200, SIZE = 4 + 4 * UNITS + MOST };
    unsigned char map[SIZE] = {(4 * UNITS) & 0xFF, (4 * UNITS) >> 8};
    const uint32_t leaf = 1u << 10 | 1u << 8 | 'a'; /* its value is at 'a' ^ 1: text 0 */
    memcpy(map + 4 + 4 * 'a', &leaf, 4);
    memset(map + 4 + 4 * UNITS, 'x', count);
    char json[4 * SIZE], *at = json;
    at += sprintf(at, "{'normalizer':{'type':'Precompiled','precompiled_charsmap':'");
    for (size_t i = 0; i + 2 < SIZE; i += 3) {
        uint32_t bits = (uint32_t)map[i] << 16 | (uint32_t)map[i + 1] << 8 | map[i + 2];
        for (int shift = 18; shift >= 0; shift -= 6)
            *at++ = DIGITS[bits >> shift & 63];
    }
    sprintf(at, "'},'model':{'type':'Unigram','unk_id':0,'vocab':[['u',-9],['x',-1],['b',-1]]}}");
    return load(tokenizer, json, err);
}

Test(tokenizer_load, a_map_of_characters_replaces_and_cannot_multiply_a_text_without_end)
{
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    struct token_list ids = {0};
    cr_assert_eq(load_map(&tokenizer, 2, &err), 0, "%s", err.message);
    cr_assert_eq(tokenizer_encode(tokenizer, "ab", 2, false, &ids, &err), 0, "%s", err.message);
    cr_assert_eq(ids.count, 3);
    cr_expect_arr_eq(ids.ids, ((int32_t[]){1, 1, 2}), 12);
    tokenizer_free(tokenizer);
    char text[1000];
    memset(text, 'a', sizeof text);
    cr_assert_eq(load_map(&tokenizer, 1000, &err), 0, "%s", err.message);
    cr_expect_eq(tokenizer_encode(tokenizer, text, sizeof text, false, &ids, &err), -1);
    cr_expect_str_eq(err.message,
                     "tokenizer: normalizers[0]: expected at most 68096 bytes, got 69000");
    error_clear(&err);
    token_list_clear(&ids);
    tokenizer_free(tokenizer);
}
