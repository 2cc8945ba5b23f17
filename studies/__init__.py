"""Studies of the papers. They learn raw records under LDP on purpose, so the warning of its cost is silent."""

import warnings

warnings.filterwarnings("ignore", message=".*although this process sees it raw", category=UserWarning)
