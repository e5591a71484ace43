"""How the command line shows things: tables, pages, progress bars and live views. On a terminal they are coloured and fitted to its width;
elsewhere they are plain text.
"""
