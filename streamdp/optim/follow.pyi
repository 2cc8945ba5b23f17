"""Types of `follow`, which is compiled."""

BLOCKS: int
OPEN: int
KNOWN: int
RECENT: int
NUMBERS: int
SAVED: int
ROWS: int
LEVELS: int
EVER: int
FOLLOWED: int
ALARMS: int
MIXED: int
LOOKED: int
NOTICED: int
