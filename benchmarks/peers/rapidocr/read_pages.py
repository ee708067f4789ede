"""Read pages by RapidOCR's own program: `read_pages.py FOLDER SIDE`.

Prints a list of the texts of each page, and the processor time of a page, as JSON.
"""

import json
import sys
import time
from pathlib import Path

from rapidocr_onnxruntime import RapidOCR

_ROUNDS = 3


def main(folder: str, side: str) -> None:
    """Read all pages of a folder."""
    engine = RapidOCR(det_limit_side_len=int(side), intra_op_num_threads=1, inter_op_num_threads=1)
    pages = [str(path) for path in sorted(Path(folder).glob("*.png"))]
    read = [engine(page)[0] or [] for page in pages]
    began = time.process_time()
    for _ in range(_ROUNDS):
        for page in pages:
            engine(page)
    page_ms = (time.process_time() - began) * 1000 / (_ROUNDS * len(pages))
    print(json.dumps({"texts": [[line[1] for line in one] for one in read], "page_ms": page_ms}))


if __name__ == "__main__":
    main(*sys.argv[1:])
