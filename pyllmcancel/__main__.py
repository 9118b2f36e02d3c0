import sys

from pyllmcancel.cli import main

sys.exit(main())
