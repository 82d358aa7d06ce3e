"""The words every package speaks: identities of messages, instants, errors.  Imports nothing of ours."""
