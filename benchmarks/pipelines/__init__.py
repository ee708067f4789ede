"""PP-OCR as a pipeline beside RapidOCR, and beams of a model of speech."""
