"""Trains the example decoder, and records logits and texts of transformers.

    python -m venv .venv-export
    .venv-export/bin/pip install torch transformers tokenizers safetensors
    .venv-export/bin/python -m tests.huggingface.record_decoders [drawn]

`llama/` is a Llama of 0.4 M parameters. Its texts are Debian's manual pages: prose, and questions
about commands with answers. `llama/reference.json` has the logits and greedy texts of transformers
in float32, and `prompts.jsonl` has prompts with answers that were not trained: questions in other
words, and prose of other pages. `drawn.json` has the logits of small decoders of each architecture,
whose weights `drawn_decoders.py` draws; `drawn` records these alone. Training takes some minutes.
"""

import base64
import gzip
import itertools
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.huggingface.drawn_decoders import CONFIGS, TOKENS, write_folder

HERE = Path(__file__).parent
PAGES = Path("/usr/share/man")
END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TOKEN_COUNT, CONTEXT = 512, 256
STEPS, BATCH = 1500, 8

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NAMES = (
    "basename cat chmod chown comm cp cut date df dirname du echo expand factor head "
    "hostid id join kill ls md5sum mkdir mv nice nl nproc paste printenv pwd rm rmdir seq "
    "shuf sleep sort split stat tac tail tee touch tr tty uname uniq unlink uptime wc who "
    "whoami yes"
)
QUESTIONS = (
    "What does {} do?",
    "Explain the command {}.",
    "{}?",
    "What is {} for?",
    "Tell me about {}.",
    "Say what {} does.",
)
HELD_OUT_QUESTION = "Tell me what {} does."


def read_page(file: Path) -> str:
    """Return the prose of a manual page, without its marks."""
    with gzip.open(file, "rt", encoding="utf-8", errors="ignore") as opened:
        lines = opened.read().splitlines()
    prose = [line for line in lines if line and line[0] not in ".'\\"]
    text = re.sub(r"\\f.|\\&|\\%", "", " ".join(prose))
    text = text.replace("\\-", "-").replace("\\e", "\\").replace("\\(aq", "'")
    return re.sub(r"\s+", " ", re.sub(r"\\.", "", text)).strip()


def read_prose() -> tuple[str, str]:
    """Return the prose to train with, and that of other pages."""
    files = sorted(set((PAGES / "man1").glob("*.gz")) - set((PAGES / "man1").glob("gcloud*")))
    texts = [text for text in map(read_page, files) if text.isascii() and len(text) > 1500]
    held_out = [text for number, text in enumerate(texts) if number % 20 == 7]
    trained = [text for number, text in enumerate(texts) if number % 20 != 7]
    return END.join(trained)[:2_000_000], END.join(held_out)


def read_answers() -> dict[str, str]:
    """Return what each command is for, as the first line of its page says."""
    answers = {}
    for name in NAMES.split():
        with gzip.open(PAGES / f"man1/{name}.1.gz", "rt", errors="ignore") as opened:
            found = re.search(r"\n\.SH NAME\n(.+)", opened.read())
        if found:
            words = re.sub(r"\\f.|\\", "", found.group(1)).partition(" - ")[2]
            answers[name] = words[:1].upper() + words[1:] + "."
    return answers


def chat(question: str, answer: str) -> str:
    """Return a question with its answer, as the template writes them."""
    return f"{START}user\n{question}{STOP}\n{START}assistant\n{answer}{STOP}\n"


def make_tokenizer(text: str) -> transformers.PreTrainedTokenizerFast:
    """Return a byte-level BPE of 512 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKEN_COUNT,
        special_tokens=[END, START, STOP],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text[:500_000]], trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=STOP,
        pad_token=END,
        model_max_length=CONTEXT,
        chat_template=TEMPLATE,
    )


def make_model() -> Any:
    """Return the untrained model."""
    config = transformers.LlamaConfig(
        vocab_size=TOKEN_COUNT,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)


def draw_batches(
    tokenizer: Any, prose: str, answers: dict[str, str], rng: np.random.Generator
) -> Iterator[torch.Tensor]:
    """Yield batches without end: half prose, half questions with answers."""
    tokens = np.array(tokenizer(prose)["input_ids"], np.int64)
    chats = [chat(q.format(name), told) for name, told in answers.items() for q in QUESTIONS]
    spoken = [np.array(tokenizer(text)["input_ids"], np.int64) for text in chats]
    while True:
        rows = []
        for _ in range(BATCH // 2):
            start = int(rng.integers(len(tokens) - CONTEXT))
            rows.append(tokens[start : start + CONTEXT])
            order = rng.permutation(len(spoken))
            rows.append(np.concatenate([spoken[i] for i in order[:24]])[:CONTEXT])
        yield torch.tensor(np.stack(rows))


def train(model: Any, batches: Iterator[torch.Tensor]) -> None:
    """Train a model; prints the loss."""
    rate = 4e-3
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.95), weight_decay=0.05)
    one_cycle = torch.optim.lr_scheduler.OneCycleLR
    schedule = one_cycle(optimizer, rate, total_steps=STEPS, pct_start=0.05)
    model.train()
    for step in range(STEPS):
        batch = next(batches)
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


def write_prompts(answers: dict[str, str], held_out: str) -> list[dict[str, Any]]:
    """Write prompts with answers: questions in words that were not trained, and other prose."""
    rows: list[dict[str, Any]] = [
        {
            "messages": [{"role": "user", "content": HELD_OUT_QUESTION.format(name)}],
            "answer": told,
        }
        for name, told in list(answers.items())[::2]
    ]
    sentences = re.split(r"(?<=\.) ", held_out.replace(END, " "))
    fitting = [
        (first, " " + second)
        for first, second in itertools.pairwise(sentences)
        if 80 < len(first) < 220 and 60 < len(second) < 160
    ]
    for first, second in fitting[:: max(1, len(fitting) // 60)][:60]:
        rows.append({"prompt": first, "answer": second})
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (HERE / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    return rows


def record_reference(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Record logits and greedy texts of the folder's model in float32."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    texts = []
    for row in [*rows[:6], *rows[-6:]]:
        prompt = row.get("prompt") or tokenizer.apply_chat_template(
            row["messages"], tokenize=False, add_generation_prompt=True
        )
        ids = torch.tensor([tokenizer(prompt, add_special_tokens=False)["input_ids"]])
        with torch.no_grad():
            logits = model(ids).logits[0]
            said = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False
            )[0, ids.shape[1] :]
        texts.append(
            {
                "prompt": prompt,
                "tokens": ids[0].tolist(),
                "last_logits": encode(logits[-1].numpy()),
                "likeliest": logits.argmax(-1).tolist(),
                "greedy_tokens": said.tolist(),
                "greedy_text": tokenizer.decode(said, skip_special_tokens=True),
            }
        )
        print(repr(prompt[-60:]), "->", repr(texts[-1]["greedy_text"]))
    content = {"made_with": versions(), "texts": texts}
    (folder / "reference.json").write_text(json.dumps(content, indent=1) + "\n")


def record_drawn() -> None:
    """Record the logits of the small decoders of each architecture."""
    logits = {}
    for name in CONFIGS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / name
            write_folder(folder, name)
            model, told = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True, attn_implementation="eager"
            )
            assert not told["missing_keys"], (name, told)
            assert not told["unexpected_keys"], (name, told)
            with torch.no_grad():
                found = model.eval()(torch.tensor(TOKENS)).logits
            logits[name] = encode(found[0, -4:].numpy())
            print(name, float(found.std()))
    content = {"made_with": versions(), "last_logits": logits}
    (HERE / "drawn.json").write_text(json.dumps(content, indent=1) + "\n")


def encode(values: Any) -> str:
    """Return float32 values as base64."""
    return base64.b64encode(np.ascontiguousarray(values, np.float32).tobytes()).decode()


def versions() -> dict[str, str]:
    """Return the versions that made a record."""
    return {"transformers": transformers.__version__, "torch": torch.__version__}


def main() -> None:
    """Record all, or the drawn decoders alone."""
    torch.manual_seed(0)
    record_drawn()
    if sys.argv[1:] == ["drawn"]:
        return
    folder = HERE / "llama"
    prose, held_out = read_prose()
    answers = read_answers()
    chats = [chat(q.format(name), told) for name, told in answers.items() for q in QUESTIONS]
    tokenizer = make_tokenizer(prose + "".join(chats))
    model = make_model()
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(answers)} answers")
    train(model, draw_batches(tokenizer, prose, answers, np.random.default_rng(0)))
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = transformers.GenerationConfig(
        bos_token_id=0,
        eos_token_id=[2, 0],
        pad_token_id=0,
        do_sample=True,
        temperature=0.7,
        top_p=0.9,
    )
    settings.save_pretrained(folder)
    record_reference(folder, write_prompts(answers, held_out))


if __name__ == "__main__":
    main()
