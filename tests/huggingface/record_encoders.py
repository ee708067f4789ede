"""Write `encoders/`: a small BERT with drawn weights as a folder of sentence-transformers.

`reference.json` has the vectors that sentence-transformers and transformers give. Run in an
environment with PyTorch, from the root of the repository:

    pip install torch==2.14.1 transformers==4.57.6 sentence-transformers==5.7.0 optimum-onnx
    python -m tests.huggingface.record_encoders
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from optimum.exporters.onnx import main_export
from sentence_transformers import SentenceTransformer, models
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import WordPiece
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, BertTokenizerFast

HERE = Path(__file__).parent / "encoders" / "bert"
KEPT = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TEXTS = [
    "A river flows through the city.",
    "a stream runs through the town",
    "Ein Fluß fließt durch die Stadt, über Brücken und Wehre.",
    "河流穿过城市。",
    "E = mc² 🙂",
    "no",
]
MODES = ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


def _make_tokenizer() -> BertTokenizerFast:
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=160, special_tokens=list(SPECIAL))
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    special = [(one, SPECIAL.index(one)) for one in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = processors.BertProcessing(*special)
    return BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=48)


def record() -> None:
    """Write the folder and the vectors."""
    torch.manual_seed(0)
    tokenizer = _make_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=48,
        pad_token_id=0,
    )
    model = BertModel(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    with tempfile.TemporaryDirectory() as work:
        plain, out, whole = (Path(work) / name for name in ("plain", "out", "whole"))
        model.save_pretrained(plain)
        tokenizer.save_pretrained(plain)
        main_export(str(plain), out, task="feature-extraction", library_name="transformers")
        reference: dict[str, Any] = {"texts": TEXTS, "vectors": {}}
        for mode in MODES:
            modules = [models.Transformer(str(plain)), models.Pooling(32, pooling_mode=mode)]
            vectors = SentenceTransformer(modules=modules, device="cpu").encode(TEXTS)
            reference["vectors"][mode] = vectors.tolist()
        normal = SentenceTransformer(modules=[*modules[:1], models.Pooling(32), models.Normalize()])
        normal.save(str(whole))
        reference["vectors"]["normalized"] = normal.encode(TEXTS).tolist()
        # The same by transformers alone.
        batch = AutoTokenizer.from_pretrained(plain)(TEXTS, padding=True, return_tensors="pt")
        with torch.no_grad():
            hidden = AutoModel.from_pretrained(plain).eval()(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None]
        means = (hidden * mask).sum(1) / mask.sum(1)
        reference["transformers_mean"] = means.tolist()
        reference["tokens"] = [int(count) for count in batch["attention_mask"].sum(1)]
        shutil.rmtree(HERE, ignore_errors=True)
        for file in KEPT:
            (HERE / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(whole / file, HERE / file)
        shutil.copyfile(out / "model.onnx", HERE / "model.onnx")
    (HERE / "reference.json").write_text(json.dumps(reference) + "\n")


if __name__ == "__main__":
    record()
