"""From runs to what people read. ``tables``: numbers and text tables; ``plots``: inline SVG; ``page``: one HTML file.

Pure: no clock, no file, no layer. :mod:`headlong.bench.rows` says what a run holds.
"""
