"""Whatever bytes a server sends, in whatever pieces: the same verdict, or a closed connection, and bounded memory."""
