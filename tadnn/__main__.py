from __future__ import annotations

from tadnn.cli import main

if __name__ == "__main__":
    main()
