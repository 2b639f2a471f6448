"""Waits for up to two minutes until a host is ready. Arguments: its address, and a file of certificate authorities."""

import ssl
import sys
import time
from urllib.error import HTTPError
from urllib.request import urlopen

url, *ca = sys.argv[1:]
context = ssl.create_default_context(cafile=ca[0]) if ca else None
last = None
for _ in range(120):
    try:
        urlopen(url, timeout=5, context=context)
        print(f"ready: {url}")
        sys.exit()
    except OSError as error:
        answer = error.read(2000).decode(errors="replace") if isinstance(error, HTTPError) else ""
        if last != (last := f"not ready: {url}: {error} {answer}".strip()):
            print(last, flush=True)
    time.sleep(1)
sys.exit(f"no host is ready. Read the logs of the pods; with `autoscaling.min: 0`, no pod may run. {last}")
