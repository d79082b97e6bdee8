"""How much each feature speaks for a memory. Written by `benchmarks/fit_memory_weights.py`, which says how.

Which of these apply is a matter of who wrote the memory: nobody and it stands alone, nobody and it is in a thread, a
person, or a user and an assistant. The first four are for words alone, the last four for words and meanings.
"""

from __future__ import annotations

_TABLE: tuple[tuple[str, float, float, float, float, float, float, float, float], ...] = (
    # feature               notes    lines   people     chat    notes    lines   people     chat
    ("words",            0.766,   1.443,   1.443,   0.809,   0.560,   1.032,   1.032,   0.540),
    ("head",            -4.859,   1.014,   1.014,   2.846,  -7.751,   1.198,   1.198,   2.350),
    ("around",          -1.198,   3.627,   3.627,   0.266,  -1.795,   3.315,   3.315,   0.131),
    ("further_around",  11.335,   1.327,   1.327,   1.817,  12.995,   1.613,   1.613,   1.773),
    ("before",           0.000,   1.018,   1.018,  -0.012,   0.000,   0.610,   0.610,  -0.157),
    ("after",            0.000,   0.301,   0.301,   0.213,   0.000,   0.293,   0.293,   0.150),
    ("before_two",       0.000,   0.711,   0.711,  -0.017,   0.000,   0.472,   0.472,  -0.017),
    ("thread_best",      0.766,   0.783,   0.783,   0.354,   0.679,   0.715,   0.715,   0.278),
    ("thread_share",    -1.198,  -0.039,  -0.039,   2.328,  -1.538,  -0.433,  -0.433,   2.060),
    ("named",            0.000,   3.601,   3.601,   0.416,   0.000,   3.110,   3.110,   0.491),
    ("named_head",       0.000,  -0.334,  -0.334,   2.071,   0.000,  -0.571,  -0.571,   1.881),
    ("in_company",       0.000,   2.271,   2.271,   0.000,   0.000,   1.591,   1.591,   0.000),
    ("substance",       -0.536,  -0.207,  -0.207,  -1.104,  -0.178,   0.096,   0.096,  -1.010),
    ("broad_substance",  0.046,   0.902,   0.902,   0.356,   0.121,   0.466,   0.466,   0.412),
    ("asks",            -0.102,  -0.737,  -0.737,   0.151,  -0.172,  -0.626,  -0.626,   0.133),
    ("answers",          0.000,   0.824,   0.824,   0.137,   0.000,   0.821,   0.821,   0.139),
    ("opens",            0.000,   1.545,   1.545,   0.121,   0.000,   0.810,   0.810,  -0.185),
    ("replies",         -0.404,  -0.106,  -0.106,  -0.439,  -0.292,  -0.037,  -0.037,  -0.583),
    ("to_other",        -0.564,  -0.424,  -0.424,  -0.303,  -0.528,  -0.309,  -0.309,  -0.331),
    ("of_self",          1.400,   0.409,   0.409,   0.285,   1.453,   0.433,   0.433,   0.260),
    ("names",            0.029,   0.327,   0.327,   0.184,  -0.225,   0.394,   0.394,   0.297),
    ("number",           0.159,   0.533,   0.533,   0.241,   0.358,   0.586,   0.586,   0.281),
    ("time",             0.336,   0.334,   0.334,   0.258,   0.395,   0.394,   0.394,   0.139),
    ("when_time",        1.559,   1.870,   1.870,   0.859,   1.480,   2.010,   2.010,   0.994),
    ("standing",         2.138,   0.000,   0.000,   2.086,   1.736,   0.000,   0.000,   1.907),
    ("at_all",           0.000,   0.000,   0.000,   0.000,   0.000,   0.000,   0.000,   0.000),
    ("meaning",          0.000,   0.000,   0.000,   0.000,   5.800,   6.886,   6.886,   4.674),
)  # fmt: skip


def _columns(first: int, features: int) -> tuple[tuple[float, ...], ...]:
    """By kind of memory, in the order of `desk.py`; the user and the assistant share one."""
    columns = list(zip(*(row[1:] for row in _TABLE[:features]), strict=True))
    return (*columns[first : first + 4], columns[first + 3])


BY_WORDS = _columns(0, len(_TABLE) - 1)
BY_MEANING = _columns(4, len(_TABLE))
