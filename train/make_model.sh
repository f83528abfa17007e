#!/usr/bin/env bash
# Trains the shipped model again: tokenizer, tokens, training, export, model card. Two cores take about an hour and a half.
#   DATA   folder with train.jsonl.xz and valid.jsonl.xz; or any text file or folder of them (.txt, .jsonl, .gz, .xz)
#   VALID  held-out text; by default DATA's valid.jsonl.xz
#   OUT    folder of the model          RUN    folder of tokens and of the run's state (resumed if it is there)
#   STEPS, DECAY                        steps of 8,192 tokens, and how many of them the rate's decay takes
set -euo pipefail
cd "$(dirname "$0")/.."

DATA=${DATA:-../shared/data/books}
OUT=${OUT:-models/regla-books-4.5m}
RUN=${RUN:-train/runs/regla-books-4.5m}
STEPS=${STEPS:-3200}
DECAY=${DECAY:-$((STEPS * 3 / 10))}
if [ "$DATA" = ../shared/data/books ]; then
    ABOUT='259 public-domain books in English, published before 1928 (118 M characters)'
else
    ABOUT=$DATA
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
    $python -m train.tokenizer --train "$DATA" ${VALID:+--valid "$VALID"} --out "$RUN"
fi

# One wait for the other thread costs less than a core that spins, and big blocks of memory are kept, not given back.
export OMP_WAIT_POLICY=passive MALLOC_MMAP_THRESHOLD_=4000000000 MALLOC_TRIM_THRESHOLD_=8000000000
$python -m train.fit --config train/regla-books.json --data "$RUN/train.u16" --run "$RUN" --resume \
    --steps "$STEPS" --decay "$DECAY" --warmup 60 --window 512 --batch 16 --parts 2 --bf16 --compile \
    | tee -a "$RUN/log"
$python -m train.export --state "$RUN/state.pt" --config train/regla-books.json \
    --tokenizer "$RUN/tokenizer.json" --out "$OUT"
if [ -n "${VALID:-}" ] && [ -x build/release/regla ]; then
    $python -m train.make_card "$OUT" --valid "$VALID" --log "$RUN/log" \
        --data "$ABOUT" --text-tokens $(($(stat -c %s "$RUN/train.u16") / 2))
fi
