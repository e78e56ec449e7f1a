// The dispatch table of a level from what its file has compiled. Included last inside the anonymous namespace; what levels have
// under names of their own is passed.
constexpr Kernels table_of(const char* isa, decltype(Kernels::scan_u8) scan, double code_product,
                           bool summed = false) {
    return {isa, scan, dense_rows, dense_tile, dot_rows, dot_floats, dot_block, sum_exps_of, rotate_of, widen_of,
            largest_double_of, radius_of, largest_of, largest_there_of, interval_sums_of, interval_exps_of,
            gaps_of, below_of, sides_of, split_of, lower_above_of, survivors_of, noise_of, high_words_of, gumbel_keys_of, encode_row_of, row_norm_of, row_floats_of, six_bits_of,
            link_lse_of, link_at_of, link_gradient_of, read_of, nullptr, summed, code_product};
}
