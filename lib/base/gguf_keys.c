/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/gguf_keys.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The first row that fits counts. tests/data/gguf/keys.txt names where each key is from. */
static const struct gguf_row rows[] = {
    {"general.architecture", GGUF_READ, NULL},
    {"general.type", GGUF_REFUSED, "model"},
    {"general.quantization_version", GGUF_REFUSED, "0|1|2"},
    {"general.alignment", GGUF_READ, NULL},
    {"general.sampling.penalty_last_n", GGUF_WARNED, "-1"},
    {"general.sampling.sequence", GGUF_WARNED, NULL},
    {"general.sampling.xtc_probability", GGUF_WARNED, "0"},
    {"general.sampling.xtc_threshold", GGUF_HARMLESS, NULL},
    {"general.sampling.mirostat", GGUF_WARNED, "0"},
    {"general.sampling.mirostat_tau", GGUF_HARMLESS, NULL},
    {"general.sampling.mirostat_eta", GGUF_HARMLESS, NULL},
    {"general.sampling.*", GGUF_READ, NULL}, /* engine/model/sampling.h names them */
    {"general.*", GGUF_HARMLESS, NULL},      /* names, licences, how it was made */
    {"quantize.*", GGUF_HARMLESS, NULL},
    {"split.no", GGUF_READ, NULL},
    {"split.count", GGUF_READ, NULL},
    {"split.tensors.count", GGUF_READ, NULL},
    {"adapter.*", GGUF_REFUSED, NULL}, /* of files that are no models */
    {"imatrix.*", GGUF_REFUSED, NULL},
    {"diffusion.shift_logits", GGUF_REFUSED, "false"},
    {"xielu.*", GGUF_REFUSED, NULL},
    {"clip.*", GGUF_ASIDE, NULL},

    {"tokenizer.ggml.model", GGUF_READ, NULL},
    {"tokenizer.ggml.pre", GGUF_READ, NULL},
    {"tokenizer.ggml.tokens", GGUF_READ, NULL},
    {"tokenizer.ggml.token_type", GGUF_READ, NULL},
    {"tokenizer.ggml.scores", GGUF_READ, NULL},
    {"tokenizer.ggml.merges", GGUF_READ, NULL},
    {"tokenizer.ggml.bos_token_id", GGUF_READ, NULL},
    {"tokenizer.ggml.eos_token_id", GGUF_READ, NULL},
    {"tokenizer.ggml.eot_token_id", GGUF_READ, NULL},
    {"tokenizer.ggml.eom_token_id", GGUF_READ, NULL},
    {"tokenizer.ggml.eos_token_ids", GGUF_READ, NULL}, /* Ollama's */
    {"tokenizer.ggml.unknown_token_id", GGUF_READ, NULL},
    {"tokenizer.ggml.add_bos_token", GGUF_READ, NULL},
    {"tokenizer.ggml.add_eos_token", GGUF_READ, NULL},
    {"tokenizer.ggml.add_space_prefix", GGUF_READ, NULL},
    {"tokenizer.chat_template", GGUF_READ, NULL},
    {"tokenizer.chat_template.tool_use", GGUF_READ, NULL},
    {"tokenizer.chat_template.*", GGUF_HARMLESS, NULL},
    {"tokenizer.chat_templates", GGUF_HARMLESS, NULL}, /* the names of those */
    {"tokenizer.ggml.token_type_count", GGUF_HARMLESS, NULL},
    {"tokenizer.ggml.remove_extra_whitespaces", GGUF_HARMLESS, NULL}, /* of Unigram */
    {"tokenizer.ggml.precompiled_charsmap", GGUF_REFUSED, NULL},
    {"tokenizer.ggml.added_tokens", GGUF_REFUSED, NULL},
    {"tokenizer.ggml.normalizer.lowercase", GGUF_REFUSED, "false"},
    {"tokenizer.ggml.normalizer.strip_accents", GGUF_REFUSED, "false"},
    {"tokenizer.ggml.suppress_tokens", GGUF_WARNED, NULL},
    {"tokenizer.ggml.*_token_id", GGUF_HARMLESS, NULL}, /* tokens for other uses */
    {"tokenizer.ggml.*_token_ids", GGUF_HARMLESS, NULL},
    {"tokenizer.ggml.add_*_token", GGUF_HARMLESS, NULL}, /* of BERT, or of no model */
    {"tokenizer.ggml.*", GGUF_REFUSED, NULL},
    {"tokenizer.*", GGUF_HARMLESS, NULL}, /* other forms of the same */

    {"%.vocab_size", GGUF_READ, NULL},
    {"%.context_length", GGUF_READ, NULL},
    {"%.embedding_length", GGUF_READ, NULL},
    {"%.embedding_length_out", GGUF_REFUSED, "0|=embedding_length"},
    {"%.embedding_length_per_layer_input", GGUF_REFUSED, "0"},
    {"%.features_length", GGUF_REFUSED, "0"},
    {"%.block_count", GGUF_READ, NULL},
    {"%.feed_forward_length", GGUF_READ, NULL},
    {"%.use_parallel_residual", GGUF_READ, "false"},
    {"%.tensor_data_layout", GGUF_REFUSED, "Meta AI original pth"},
    {"%.hidden_activation", GGUF_REFUSED, NULL},
    {"%.nextn_predict_layers", GGUF_READ, "0"},
    {"%.n_deepstack_layers", GGUF_REFUSED, "0"},
    {"%.pooling_type", GGUF_HARMLESS, NULL}, /* of embeddings, which nobody here returns */
    {"%.logit_scale", GGUF_READ, "0|1"},
    {"%.residual_scale", GGUF_READ, "0|1"},
    {"%.embedding_scale", GGUF_READ, "0|1"},
    {"%.attn_logit_softcapping", GGUF_READ, "0"},
    {"%.final_logit_softcapping", GGUF_READ, "0"},
    {"%.decoder_start_token_id", GGUF_REFUSED, "4294967295"},
    {"%.decoder_block_count", GGUF_REFUSED, "0"},
    {"%.swin_norm", GGUF_REFUSED, "false"},
    {"%.rescale_every_n_layers", GGUF_REFUSED, "0"},
    {"%.time_mix_extra_dim", GGUF_REFUSED, "0"},
    {"%.time_decay_extra_dim", GGUF_REFUSED, "0"},
    {"%.token_shift_count", GGUF_REFUSED, "0"},
    {"%.full_attention_interval", GGUF_READ, "0|1"},
    {"%.activation_sparsity_scale", GGUF_REFUSED, "0"},
    {"%.altup.active_idx", GGUF_REFUSED, "0"},
    {"%.altup.num_inputs", GGUF_REFUSED, "0|1"},
    {"%.hash_layer_count", GGUF_REFUSED, "0"},
    {"%.hyper_connection.count", GGUF_REFUSED, "0|1"},
    {"%.hyper_connection.*", GGUF_HARMLESS, NULL}, /* where there are none */
    {"%.target_layers", GGUF_REFUSED, NULL},
    {"%.target_hidden_size", GGUF_REFUSED, "0"},
    {"%.norm_before_residual", GGUF_REFUSED, "false"},
    {"%.wkv.head_size", GGUF_REFUSED, "0"},
    {"%.kda.head_dim", GGUF_REFUSED, "0"},
    {"%.posnet.*", GGUF_REFUSED, "0"},
    {"%.convnext.*", GGUF_REFUSED, "0"},
    {"%.classifier.output_labels", GGUF_REFUSED, NULL},
    {"%.shortconv.l_cache", GGUF_READ, "0"},
    {"%.dense_*", GGUF_HARMLESS, NULL}, /* of embeddings */

    /* Of experts: where there are none, the others change nothing. */
    {"%.expert_count", GGUF_READ, "0"},
    {"%.expert_shared_count", GGUF_REFUSED, "0"},
    {"%.expert_shared_feed_forward_length", GGUF_READ, "0"},
    {"%.expert_*", GGUF_HARMLESS, NULL},
    {"%.experts_per_group", GGUF_HARMLESS, NULL},
    {"%.leading_dense_block_count", GGUF_HARMLESS, NULL},
    {"%.moe_*", GGUF_HARMLESS, NULL},
    {"%.interleave_moe_layer_step", GGUF_HARMLESS, NULL},
    {"%.router_logit_softcapping", GGUF_HARMLESS, NULL},
    {"%.norm_top_k_prob", GGUF_HARMLESS, NULL},
    {"%.swiglu_clamp_exp", GGUF_HARMLESS, NULL},
    {"%.swiglu_clamp_shexp", GGUF_REFUSED, "0"},

    {"%.attention.head_count", GGUF_READ, NULL},
    {"%.attention.head_count_kv", GGUF_READ, "0|=attention.head_count"},
    {"%.attention.key_length", GGUF_READ, "0"},
    {"%.attention.value_length", GGUF_READ, "0|=attention.key_length"},
    {"%.attention.head_dim", GGUF_REFUSED, "=attention.key_length"}, /* Ollama's */
    {"%.attention.key_length_swa", GGUF_REFUSED, "0|=attention.key_length"},
    {"%.attention.value_length_swa", GGUF_REFUSED, "0|=attention.value_length"},
    {"%.attention.key_length_mla", GGUF_REFUSED, "0"},
    {"%.attention.value_length_mla", GGUF_REFUSED, "0"},
    /* A family has one kind of norm; that of the other kind is not there. */
    {"%.attention.layer_norm_epsilon", GGUF_HARMLESS, NULL},
    {"%.attention.layer_norm_rms_epsilon", GGUF_HARMLESS, NULL},
    {"%.attention.group_norm_epsilon", GGUF_HARMLESS, NULL},
    {"%.attention.group_norm_groups", GGUF_REFUSED, "0"},
    {"%.attention.causal", GGUF_READ, "true"},
    {"%.attention.max_alibi_bias", GGUF_REFUSED, "0"},
    {"%.attention.clamp_kqv", GGUF_REFUSED, "0"},
    {"%.attention.scale", GGUF_READ, "0"},
    {"%.attention.output_scale", GGUF_REFUSED, "0|1"},
    {"%.attention.value_scale", GGUF_REFUSED, "0|1"},
    {"%.attention.temperature_length", GGUF_REFUSED, "0"},
    {"%.attention.temperature_scale", GGUF_REFUSED, "0"},
    {"%.attention.sliding_window", GGUF_READ, "0|>=context_length"},
    {"%.attention.sliding_window_pattern", GGUF_READ, "0|1|false"},
    {"%.attention.recurrent_layers", GGUF_READ, "0|false"},
    {"%.attention.shared_kv_layers", GGUF_REFUSED, "0"},
    {"%.attention.relative_buckets_count", GGUF_REFUSED, "0"},
    {"%.attention.*_lora_rank", GGUF_REFUSED, "0"},
    {"%.attention.output_group_count", GGUF_REFUSED, "0"},
    {"%.attention.compress_*", GGUF_REFUSED, "0"},
    {"%.attention.indexer.*", GGUF_REFUSED, "0"},

    {"%.rope.dimension_count", GGUF_READ, "0"},
    {"%.rope.dimension_count_swa", GGUF_REFUSED, "0|=rope.dimension_count"},
    /* Parts of a place in images: in text they are all the same. */
    {"%.rope.dimension_sections", GGUF_HARMLESS, NULL},
    {"%.rope.mrope_section", GGUF_HARMLESS, NULL},
    {"%.rope.mrope_interleaved", GGUF_HARMLESS, NULL},
    {"%.mrope_sections", GGUF_HARMLESS, NULL},
    {"%.rope.freq_base", GGUF_READ, NULL},
    {"%.rope.freq_base_swa", GGUF_READ, "=rope.freq_base"},
    {"%.rope.global.freq_base", GGUF_READ, "=rope.freq_base"}, /* Ollama's */
    {"%.rope.local.freq_base", GGUF_READ, "=rope.freq_base"},
    {"%.rope.freq_scale", GGUF_REFUSED, "1"},
    {"%.rope.scale_linear", GGUF_READ, "0|1"},
    {"%.rope.scaling.type", GGUF_READ, "none"},
    {"%.rope.scaling.factor", GGUF_READ, "0|1"},
    {"%.rope.scaling.alpha", GGUF_REFUSED, "0|1"},
    {"%.rope.scaling.attn_factor", GGUF_REFUSED, "1"},
    /* Without a type that has them, they change nothing. */
    {"%.rope.scaling.original_context_length", GGUF_READ, "0|=context_length"},
    {"%.rope.scaling.finetuned", GGUF_READ, "false"},
    {"%.rope.scaling.yarn_attn_factor", GGUF_READ, "1"},
    {"%.rope.scaling.yarn_ext_factor", GGUF_READ, "-1|1"},
    {"%.rope.scaling.yarn_log_multiplier", GGUF_READ, "0"},
    {"%.rope.scaling.yarn_beta_fast", GGUF_READ, "32"},
    {"%.rope.scaling.yarn_beta_slow", GGUF_READ, "1"},
    {"%.rope.scaling.extrapolation_factor", GGUF_READ, "1"}, /* Ollama's */
    {"%.rope.scaling.beta_fast", GGUF_READ, "32"},
    {"%.rope.scaling.beta_slow", GGUF_READ, "1"},

    {"%.ssm.conv_kernel", GGUF_READ, "0"},
    {"%.ssm.inner_size", GGUF_READ, "0"},
    {"%.ssm.state_size", GGUF_READ, "0"},
    {"%.ssm.time_step_rank", GGUF_READ, "0"},
    {"%.ssm.group_count", GGUF_READ, "0"},
    {"%.ssm.dt_b_c_rms", GGUF_REFUSED, "false"},
    {"%.ssm.v_head_reordered", GGUF_REFUSED, "true"}, /* Ollama's: as llama.cpp has them */

    {"%.vision.*", GGUF_ASIDE, NULL},
    {"%.audio.*", GGUF_ASIDE, NULL},
    {"%.mm.*", GGUF_ASIDE, NULL},
    {"%.deepstack_mapping", GGUF_ASIDE, NULL},
    {"%.image_token_id", GGUF_ASIDE, NULL},
    {"%.image_token_index", GGUF_ASIDE, NULL},
    {"%.vision_start_token_id", GGUF_ASIDE, NULL},
    {"%.vision_end_token_id", GGUF_ASIDE, NULL},
    {"%.spatial_merge_size", GGUF_ASIDE, NULL},
};

const struct gguf_row *gguf_rows(size_t *count)
{
    *count = COUNT(rows);
    return rows;
}

/* What follows "ARCHITECTURE." in a key; NULL: another namespace. */
static const char *below(const char *key, const char *architecture)
{
    const size_t length = strlen(architecture);
    return strncmp(key, architecture, length) == 0 && key[length] == '.' ? key + length + 1 : NULL;
}

/* Whether a text is as the pattern, in which one * may stand for anything. */
static bool fits(const char *pattern, const char *text)
{
    const size_t before = strcspn(pattern, "*"), length = strlen(text);
    if (strncmp(pattern, text, before) != 0)
        return false;
    if (!pattern[before])
        return length == before;
    const size_t after = strlen(pattern + before + 1);
    return length >= before + after && strcmp(text + length - after, pattern + before + 1) == 0;
}

const struct gguf_row *gguf_row_find(const char *key, const char *architecture)
{
    const char *own = below(key, architecture);
    for (size_t i = 0; i < COUNT(rows); i++) {
        const bool of_any = strncmp(rows[i].key, "%.", 2) == 0;
        if (of_any ? own && fits(rows[i].key + 2, own) : fits(rows[i].key, key))
            return &rows[i];
    }
    return NULL;
}

/* Number i of an entry; NAN: it is none. */
static double number_at(const struct gguf_entry *entry, uint64_t i)
{
    return gguf_type_is_int(entry->type)     ? (double)gguf_int_at(entry, i)
           : gguf_type_is_float(entry->type) ? gguf_number_at(entry, i)
                                             : (double)NAN;
}

/* Whether all values of the entry are as another key's one, or with `more` at least that. */
static bool is_as(const struct gguf_entry *entry, const struct gguf_entry *other, bool more)
{
    if (!other || other->count < 1)
        return false;
    const double expected = number_at(other, 0);
    for (uint64_t i = 0; i < other->count; i++)
        if (!(number_at(other, i) == expected))
            return false;
    for (uint64_t i = 0; i < entry->count; i++)
        if (!(number_at(entry, i) == expected || (more && number_at(entry, i) > expected)))
            return false;
    return true;
}

/* Whether all values of the entry are what a word says. */
static bool is_word(const struct gguf_entry *entry, const char *word, size_t length)
{
    const unsigned char *at = entry->data;
    char *end;
    const double number = strtod(word, &end);
    for (uint64_t i = 0; i < entry->count; i++) {
        bool same = end == word + length && number_at(entry, i) == number;
        if (entry->type == GGUF_STRING) {
            const struct gguf_text text = gguf_next_text(&at);
            same = text.length == length && memcmp(text.bytes, word, length) == 0;
        } else if (entry->type == GGUF_BOOL) {
            const char *expected = entry->data[i] ? "true" : "false";
            same = length == strlen(expected) && memcmp(word, expected, length) == 0;
        }
        if (!same)
            return false;
    }
    return true;
}

/* A list without values is as none. */
static bool is_neutral(const struct gguf *gguf, const struct gguf_entry *entry,
                       const struct gguf_row *row, const char *architecture)
{
    const char *word = row->neutral;
    while (word && *word) {
        char other[120];
        const size_t length = strcspn(word, "|"), sign = strspn(word, ">=");
        snprintf(other, sizeof other, "%s.%.*s", architecture, (int)(length - sign), word + sign);
        if (sign > 0 ? is_as(entry, gguf_find(gguf, other), sign > 1)
                     : is_word(entry, word, length))
            return true;
        word += length + (word[length] == '|');
    }
    return entry->count == 0;
}

/* What an entry says, for messages. */
static const char *value_text(const struct gguf_entry *entry, char text[64])
{
    const unsigned char *at = entry->data;
    if (entry->array)
        return gguf_kind(entry, text);
    if (entry->type == GGUF_STRING) {
        const struct gguf_text value = gguf_next_text(&at);
        snprintf(text, 64, "\"%.*s\"", (int)(value.length < 40 ? value.length : 40), value.bytes);
    } else if (entry->type == GGUF_BOOL) {
        snprintf(text, 64, "%s", entry->data[0] ? "true" : "false");
    } else {
        snprintf(text, 64, "%.9g", number_at(entry, 0));
    }
    return text;
}

static int refuse(const struct gguf *gguf, const struct gguf_entry *entry,
                  const struct gguf_row *row, struct error *err)
{
    char got[64], expected[80] = "";
    size_t length = 0;
    for (const char *c = row->neutral; c && *c && length + sizeof " or " < sizeof expected; c++)
        length += (size_t)snprintf(expected + length, sizeof expected - length,
                                   *c == '|' ? " or " : "%c", *c);
    if (!row->neutral)
        return error_set(err, ERROR_UNSUPPORTED, "%s: %.100s: not supported", gguf->file,
                         entry->key);
    return error_set(err, ERROR_UNSUPPORTED, "%s: %.100s: expected %s, got %s (not supported)",
                     gguf->file, entry->key, expected, value_text(entry, got));
}

/* What is told once: the first key of each kind, and how many there are. */
struct told {
    const char *first;
    size_t count;
};

static void note(struct told *told, const char *key)
{
    if (told->count++ == 0)
        told->first = key;
}

static void tell(const struct gguf *gguf, const struct told *told, const char *what,
                 struct warnings *warnings)
{
    if (told->count > 0)
        warnings_add(warnings, "%s: %.100s%s: %s", gguf->file, told->first,
                     told->count > 1 ? " and others" : "", what);
}

int gguf_keys_check(const struct gguf *gguf, const char *architecture, bool tokenizer,
                    gguf_knows *knows, const void *context, struct warnings *warnings,
                    struct error *err)
{
    static const char of_tokenizer[] = "tokenizer.";
    struct told strange = {0}, aside = {0}, warned = {0};
    for (size_t i = 0; i < gguf->num_entries; i++) {
        const struct gguf_entry *entry = &gguf->entries[i];
        const char *own = below(entry->key, architecture);
        if (tokenizer != (strncmp(entry->key, of_tokenizer, sizeof of_tokenizer - 1) == 0) ||
            knows(context, own))
            continue;
        const struct gguf_row *row = gguf_row_find(entry->key, architecture);
        if (!row && own)
            return error_set(err, ERROR_UNSUPPORTED,
                             "%s: %.100s: the family does not know this key", gguf->file,
                             entry->key);
        if (!row) /* llama.cpp does not know it either */
            note(&strange, entry->key);
        else if (row->rule == GGUF_ASIDE)
            note(&aside, entry->key);
        else if (row->rule != GGUF_HARMLESS && (own || row->rule != GGUF_READ) &&
                 !is_neutral(gguf, entry, row, architecture)) {
            if (row->rule != GGUF_WARNED)
                return refuse(gguf, entry, row, err);
            note(&warned, entry->key);
        }
    }
    tell(gguf, &strange, "not known, without effect", warnings);
    tell(gguf, &aside, "of images or sound, which are left aside", warnings);
    tell(gguf, &warned, "not applied", warnings);
    return 0;
}
