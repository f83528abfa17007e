#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains a model on a CPU: tokenizer, tokens, training, export, model card. An hour or two on one
# core, then half an hour for the card's figures. From the environment:
#   DATA     folder with train.jsonl.xz and valid.jsonl.xz; or any text file, or folder of them
#   VALID    held-out text; by default DATA's valid.jsonl.xz
#   ABOUT    what the training text is, for the card
#   OUT      folder of the model; has to be said
#   CONFIG   of the model; by default the shipped model's, train/regla-books.json
#   BESIDE   a model with a card: the new one takes its tokenizer, and becomes a row of that card
#   RUN      folder of the tokens and of the run's state: an interrupted run goes on from there
#   STEPS    steps of 8,192 tokens; DECAY of them with a falling rate. More than before: the run goes on
#   THREADS  of the training
set -euo pipefail
cd "$(dirname "$0")/.."

books=../shared/data/books
DATA=${DATA:-$books}
CONFIG=${CONFIG:-train/regla-books.json}
if [ -z "${OUT:-}" ]; then
    echo "make model: OUT: expected a folder for the model of $DATA, got none" >&2
    exit 1
fi
RUN=${RUN:-train/runs/$(basename "$OUT")}
STEPS=${STEPS:-1556}
DECAY=${DECAY:-$((STEPS * 850 / 1556))}
THREADS=${THREADS:-$(nproc)}
if [ "$DATA" = $books ]; then
    ABOUT=${ABOUT:-259 public-domain books in English, published before 1928 (118 M characters)}
fi
if [ ! -e "$DATA" ]; then
    echo "make model: $DATA: no such file or folder; say DATA=your-texts" >&2
    exit 1
fi
if [ -z "${VALID:-}" ] && [ -e "$DATA/valid.jsonl.xz" ]; then
    VALID=$DATA/valid.jsonl.xz
fi

train/venv.sh
python=.venv-train/bin/python
mkdir -p "$RUN"
if [ ! -e "$RUN/train.u16" ]; then
    $python -m train.tokenizer "$DATA" ${VALID:+--without "$VALID"} --config "$CONFIG" \
        ${BESIDE:+--tokenizer "$BESIDE/tokenizer.json"} --out "$RUN"
else
    echo "make model: takes the tokens in $RUN (for another DATA say another RUN)"
fi

# Waiting threads sleep, and big blocks of memory are kept instead of faulted in again every step.
export OMP_WAIT_POLICY=passive
export MALLOC_MMAP_THRESHOLD_=4000000000 MALLOC_TRIM_THRESHOLD_=8000000000
$python -m train.fit --config "$CONFIG" --data "$RUN/train.u16" --run "$RUN" \
    --steps "$STEPS" --decay "$DECAY" --warmup 60 --window 512 --batch 16 --parts 2 \
    --threads "$THREADS" --bf16 --compile --tie '' --resume | tee -a "$RUN/log"
$python -m train.export --state "$RUN/state.pt" --config "$CONFIG" \
    --tokenizer "$RUN/tokenizer.json" --out "$OUT"
if [ -z "${VALID:-}" ]; then
    echo "make model: no held-out text (VALID), so no model card" >&2
elif [ ! -x build/release/regla ]; then
    echo "make model: the card is measured by build/release/regla (make build)" >&2
elif [ -n "${BESIDE:-}" ]; then
    $python -m train.make_card "$OUT" --valid "$VALID" --log "$RUN/log" --beside "$BESIDE"
else
    $python -m train.make_card "$OUT" --valid "$VALID" --log "$RUN/log" --data "${ABOUT:-$DATA}" \
        --text-tokens $(($(stat -c %s "$RUN/train.u16") / 2))
fi
