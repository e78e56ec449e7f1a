"""What is read before rows, other than rotated codes: SVD previews and blocks; and the whitening that both and codes share."""
