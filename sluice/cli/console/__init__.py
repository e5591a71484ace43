"""The output of the command line: tables, pages, progress bars and live views. On a terminal they are coloured and fitted to its width;
otherwise they are plain text.
"""
