"""Named tolerances, each with its reason."""

#: Float activations against transformers in float32 on the same weights: sums in another order, over the largest logit.
FLOAT_LOGITS = 1e-3
#: Float activations with experts added in another order, over the largest logit. Seen: 4e-7.
REORDERED_LOGITS = 5e-6
#: Float activations against llama.cpp in float32 on the same weights. Seen: 3e-6 of the largest logit.
GGUF_LOGITS = 1e-4
#: llama.cpp against transformers, which judges what the tests write to a file. Seen: 1.2e-4 of the largest logit.
LLAMA_LOGITS = 1e-3
#: 8-bit activations with the routing of the float path: RMS error over the RMS of the logits.
INT8_LOGITS_RMS = 5e-2
#: The same where several layers have linear attention, as a multiple of what transformers itself loses in bfloat16: with
#: random weights a head reads mostly noise and normalises it, so that each such layer doubles any error. On these models
#: transformers in bfloat16 is 0.03 to 0.05 off (0.01 to 0.03 on others), and noise of 0.5 % in what is multiplied costs 0.05.
#: Seen: 1.4 to 2.2; of other families 0.9 to 1.6.
INT8_OVER_BF16 = 2.5
#: 8-bit activations with their own routing, by family: the share of choices that differ from the float path's, and the RMS
#: error over the RMS of the logits; half as much again as the worst of the family's tiny models. A flip is a near tie that
#: rounding decides. Here it is dear: random experts have nothing in common, of one or two chosen ones it replaces all that
#: a token gets, and layers behind it route what it changed. Where the branches are small beside the residual (Granite), it is
#: cheap. What flips cost a trained model is in the demo model's bars below, which let it route by itself.
INT8_OWN_ROUTING = {
    "olmoe": (0.045, 0.14),
    "mixtral": (0.075, 0.44),
    "qwen3_moe": (0.03, 0.036),
    "qwen2_moe": (0.032, 0.083),
    "qwen3_next": (0.09, 0.27),
    "qwen3_5_moe": (0.11, 0.35),
    "deepseek_v2": (0.042, 0.21),
    "deepseek_v3": (0.04, 0.23),
    "glm4_moe": (0.033, 0.17),
    "gpt_oss": (0.08, 0.42),
    "granite_moe": (0.014, 0.035),
    "granite_moe_shared": (0.002, 0.01),
    "phimoe": (0.075, 0.44),
}
#: The same share in the first layer that routes, where no flip lies behind it, for all families. Seen: 0.022.
INT8_FIRST_FLIPS = 0.033
#: Float kernels of one variant against another: fused and separate products round differently.
VARIANT_RELATIVE = 2e-5
#: Attention in bfloat16 against its definition, for inputs of deviation 1: queries, keys, weights and values have 8 bits.
BF16_ATTENTION = 3e-2
#: Routing weights of the float path: softmax of logits that differ by their summation order.
ROUTING_WEIGHTS = 1e-4

#: Quality of the demo model (400 held-out prompts), from its own bars.
KL_8BIT = 7e-4
SAME_TOP_8BIT = 0.98
KL_4BIT = 5e-3
PERPLEXITY_4BIT = 1.01
ACCURACY_4BIT = 0.01
#: With demo/calibration.txt, groups of 64 and of 32 (measured: KL 2.06e-3 and 1.68e-3, perplexity +0.34 % and
#: +0.29 %; other rounding in the statistics moves these by some percent).
KL_CALIBRATED = 2.5e-3
PERPLEXITY_CALIBRATED = 1.005
KL_CALIBRATED_32 = 2e-3
PERPLEXITY_CALIBRATED_32 = 1.006
#: Two standard errors of a perplexity ratio over the 400 prompts.
PERPLEXITY_NOISE = 1.0012
#: Times the KL of the checkpoint in which no channel stands out.
KL_OUTLIERS = 1.5
#: The NPU computes in fp16: logits with the routing of the NPU against float32 on the dequantised weights, RMS error over the
#: RMS of the logits. Its own bar.
NPU_LOGITS_RMS = 2e-2
#: The demo model on the NPU beside the CPU with float activations: of 60 prompts so many get the same next token, and the
#: least cosine of their logits.
NPU_SAME_NEXT = 59
NPU_COSINE = 0.999
