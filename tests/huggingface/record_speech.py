"""Write `speech/`: a small Whisper that learned the words of `tone_words`, exported by Optimum.

`recorded.json` has the texts of `transformers.pipeline("automatic-speech-recognition")`, greedy and
as by default, and of `WhisperFeatureExtractor` some features. Run in an environment with PyTorch,
from the root of the repository; the training takes some minutes:

    pip install torch==2.13.0 transformers==4.57.6 optimum-onnx==0.1.0
    python -m tests.huggingface.record_speech
"""

import copy
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from optimum.exporters.onnx import main_export
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import (
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizerFast,
)

from tests.huggingface.tone_words import (
    LANGUAGES,
    LONG_WORDS,
    RATE,
    WORDS,
    draw_sound,
    draw_words,
    say,
)

HERE = Path(__file__).parent / "speech"
KEPT = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "encoder_model.onnx",
    "decoder_model.onnx",
    "decoder_with_past_model.onnx",
)
SECONDS = 2
STEPS, BATCH, SOUNDS = 800, 8, 480
SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{one}|>" for one in LANGUAGES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
LONG = (100, 101, 103)


def make_processor() -> WhisperProcessor:
    """Return feature extractor and tokenizer."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [" " + " ".join(words) + "." for words in WORDS.values()] * 4
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = WhisperTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL[1:]),
        clean_up_tokenization_spaces=True,
    )
    return WhisperProcessor(WhisperFeatureExtractor(chunk_length=SECONDS), fast)


def make_model(tokenizer: Any) -> WhisperForConditionalGeneration:
    """Return a model with drawn weights."""
    ids = {one: tokenizer.convert_tokens_to_ids(one) for one in SPECIAL}
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=80,
        max_source_positions=SECONDS * 50,
        max_target_positions=32,
        decoder_start_token_id=ids["<|startoftranscript|>"],
        bos_token_id=ids["<|endoftext|>"],
        eos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"],
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config)
    settings = model.generation_config
    settings._from_model_config = False  # Else transformers makes it anew, without what follows.
    settings.lang_to_id = {f"<|{one}|>": ids[f"<|{one}|>"] for one in LANGUAGES}
    settings.task_to_id = {one: ids[f"<|{one}|>"] for one in ("translate", "transcribe")}
    settings.is_multilingual = True
    settings.task = "transcribe"
    settings.no_timestamps_token_id = ids["<|notimestamps|>"]
    settings.max_length = 32
    space = tokenizer.encode(" ", add_special_tokens=False)
    settings.begin_suppress_tokens = [*space, ids["<|endoftext|>"]]
    settings.suppress_tokens = [
        ids[one] for one in SPECIAL if one not in ("<|endoftext|>", "<|notimestamps|>")
    ]
    return model


def train(model: WhisperForConditionalGeneration, processor: WhisperProcessor) -> None:
    """Teach the model the words."""
    rng = np.random.default_rng(7)
    tokenizer = processor.tokenizer
    ids = {one: tokenizer.convert_tokens_to_ids(one) for one in SPECIAL}
    sounds, texts = [], []
    for _ in range(SOUNDS):
        language = LANGUAGES[int(rng.integers(2))]
        words = draw_words(rng, language, int(rng.integers(1, 5)))
        sounds.append(say(words, language, rng)[: SECONDS * RATE])
        text = tokenizer.encode(" " + " ".join(words) + ".", add_special_tokens=False)
        head = ("<|startoftranscript|>", f"<|{language}|>", "<|transcribe|>", "<|notimestamps|>")
        texts.append([*(ids[one] for one in head), *text, ids["<|endoftext|>"]])
    extractor = processor.feature_extractor
    prepared = extractor(sounds, sampling_rate=RATE, return_tensors="pt").input_features
    print("prepared", prepared.shape, max(map(len, texts)), flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=STEPS)
    model.train()
    for step in range(STEPS):
        chosen = rng.integers(SOUNDS, size=BATCH)
        rows, features = [texts[one] for one in chosen], prepared[chosen]
        features = features + 0.05 * torch.randn_like(features)
        longest = max(map(len, rows))
        tokens = torch.full((BATCH, longest), ids["<|endoftext|>"])
        wanted = torch.full((BATCH, longest), -100)
        for number, row in enumerate(rows):
            tokens[number, : len(row)] = torch.tensor(row)
            wanted[number, : len(row)] = torch.tensor(row)
        logits = model(input_features=features, decoder_input_ids=tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), wanted[:, 1:].reshape(-1), ignore_index=-100
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(step, loss.item(), flush=True)
    model.eval()


def record_texts(folder: Path) -> dict[str, Any]:
    """Return the texts of the pipeline: of short sounds at once, of long ones in chunks."""
    pipeline = transformers.pipeline("automatic-speech-recognition", str(folder), device="cpu")
    greedy = {"num_beams": 1}
    short, long = {}, {}
    for number in range(12):
        language, words, sound = draw_sound(number)
        given = {"raw": sound, "sampling_rate": RATE}
        text = pipeline(dict(given), generate_kwargs=greedy)["text"]
        short[number] = {"greedy": text, "default": pipeline(dict(given))["text"]}
        print(number, language, words, short[number])
    for number in LONG:
        language, words, sound = draw_sound(number, LONG_WORDS)
        given = {"raw": sound, "sampling_rate": RATE}
        text = pipeline(dict(given), chunk_length_s=SECONDS, generate_kwargs=greedy)["text"]
        long[number] = {"greedy": text}
        long[number]["default"] = pipeline(dict(given), chunk_length_s=SECONDS)["text"]
        print(number, language, words, long[number])
    silence = {"raw": np.zeros(RATE, np.float32), "sampling_rate": RATE}
    return {"short": short, "long": long, "silence": pipeline(silence, generate_kwargs=greedy)}


def record_starts(model: WhisperForConditionalGeneration) -> list[dict[str, Any]]:
    """Return the first tokens of a German text, by settings of generation."""
    sound = draw_sound(1)[2]
    extractor = WhisperFeatureExtractor(chunk_length=SECONDS)
    features = extractor(sound, sampling_rate=RATE, return_tensors="pt").input_features
    own = model.generation_config
    translate, english = own.task_to_id["translate"], own.lang_to_id["<|en|>"]
    no_times = own.no_timestamps_token_id
    found = []
    for settings in (
        {},
        {"task": None},
        {"task": None, "language": "en"},
        {"language": "<|en|>"},
        {"task": "translate"},
        {"task": "translate", "language": "de"},
        {"task": None, "forced_decoder_ids": [[1, None], [2, translate]]},
        {"task": None, "forced_decoder_ids": [[1, english], [2, translate], [3, no_times]]},
        {"task": None, "lang_to_id": None, "forced_decoder_ids": [[1, no_times]]},
        {"task": None, "lang_to_id": None},
        {"forced_decoder_ids": [[1, english]]},
        {"no_timestamps_token_id": None},
    ):
        changed = copy.deepcopy(own)
        for name, value in settings.items():
            if value is None and hasattr(changed, name):
                delattr(changed, name)
            elif value is not None:
                setattr(changed, name, value)
        changed.return_timestamps = False
        tokens = model._retrieve_init_tokens(
            features, 1, changed, model.config, num_segment_frames=SECONDS * 100, kwargs={}
        )
        found.append({"settings": settings, "tokens": tokens[0].tolist()})
        print(found[-1])
    return found


def record_features() -> dict[str, Any]:
    """Return features of a sound, by the kinds of extractors that models have."""
    _, _, sound = draw_sound(3)
    kinds: dict[str, dict[str, int]] = {
        "tiny": {"feature_size": 80, "chunk_length": 30},
        "large-v3": {"feature_size": 128, "chunk_length": 30},
        "coarse": {"feature_size": 40, "chunk_length": SECONDS, "n_fft": 512, "hop_length": 200},
    }
    found = {}
    for name, settings in kinds.items():
        extractor = WhisperFeatureExtractor(**settings)
        values = extractor(sound, sampling_rate=RATE, return_tensors="np").input_features[0]
        found[name] = {
            "settings": settings,
            "shape": list(values.shape),
            "frames": values[:, :190:19].T.round(6).tolist(),
            "sum": float(values.sum(dtype=np.float64)),
        }
    return found


def record() -> None:
    """Write the folder and the texts."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    processor = make_processor()
    model = make_model(processor.tokenizer)
    train(model, processor)
    with tempfile.TemporaryDirectory() as work:
        plain, out = Path(work) / "plain", Path(work) / "out"
        model.save_pretrained(plain)
        processor.save_pretrained(plain)
        main_export(
            str(plain),
            out,
            task="automatic-speech-recognition-with-past",
            device="cpu",
            nb_max_frames=SECONDS * 100,
        )
        recorded = {**record_texts(plain), "features": record_features()}
        recorded["starts"] = record_starts(model)
        shutil.rmtree(HERE, ignore_errors=True)
        HERE.mkdir()
        for name in KEPT:
            shutil.copyfile(out / name, HERE / name)
    told = {"transformers": transformers.__version__, "torch": torch.__version__}
    (HERE / "recorded.json").write_text(json.dumps({"made_with": told, **recorded}) + "\n")


if __name__ == "__main__":
    record()
