"""What every room uses: tables, the one exception shown as a sentence, the version, where the repository is."""
