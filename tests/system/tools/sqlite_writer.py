"""Commits numbers one by one, and says each as soon as it is durable: FILE JOURNAL_MODE."""
import sqlite3
import sys

database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("pragma journal_mode=" + sys.argv[2])
database.execute("pragma synchronous=extra")
database.execute("create table if not exists t(a integer primary key, b)")
number = 0
while True:
    number += 1
    try:
        database.execute("insert into t values(?, ?)", (number, "x" * 1000))
    except sqlite3.OperationalError:  # the daemon was killed
        break
    print(number, flush=True)
