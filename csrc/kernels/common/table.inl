// The dispatch table of a level from what its file has compiled. Included last inside the anonymous namespace.
constexpr Kernels own_table() {
    return {LANES, dense_rows, dot_rows, dot_block, sum_exps_of, rotate_of, widen_of, largest_double_of, radius_of, largest_of,
            interval_sums_of, lower_above_of, candidates_of, noise_of, high_words_of, gumbel_keys_of, row_norm_of, row_floats_of,
            link_lse_of, link_at_of, link_gradient_of};
}
