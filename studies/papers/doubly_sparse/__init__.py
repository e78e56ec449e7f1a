"""Doubly sparse softmax: a sparse mixture of sparse experts, trained by pruning."""
