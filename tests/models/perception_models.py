"""Vision, audio and two-tower models of the transformers library."""

from functools import partial
from typing import Any

from architecture import (
    CLASSES,
    IMAGE,
    SEQUENCE,
    VOCABULARY,
    Architecture,
    HuggingFace,
    caption_batch,
    image_batch,
    segments_batch,
    speech_batch,
)

LAYERS: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
PATCHES: dict[str, Any] = {**LAYERS, "image_size": IMAGE, "patch_size": 8, "num_labels": CLASSES}
# SpecAugment masks with numbers from numpy; like dropout, it is left out.
SPEECH: dict[str, Any] = {
    **LAYERS, "vocab_size": VOCABULARY, "conv_dim": [8, 8], "conv_stride": [5, 4], "conv_kernel": [10, 8],
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
    "layerdrop": 0.1, "apply_spec_augment": False,
}  # fmt: skip
TOWERS: dict[str, Any] = {
    "text_config": {**LAYERS, "vocab_size": VOCABULARY, "max_position_embeddings": SEQUENCE, "projection_dim": 8,
                    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    "vision_config": {**LAYERS, "image_size": IMAGE, "patch_size": 8, "projection_dim": 8},
    "projection_dim": 8,
}  # fmt: skip


def _images(
    task: str, name: str, class_name: str, model_type: str, middle: str, fields: dict[str, Any], **rest: Any
) -> Architecture:
    batch = {"classes": image_batch, "segments": segments_batch}[task]
    return Architecture(name, "vision", task, HuggingFace(class_name, model_type, fields), batch, middle, **rest)


classifier = partial(_images, "classes")
segmenter = partial(_images, "segments")


def speech(name: str, class_name: str, model_type: str, middle: str, fields: dict[str, Any]) -> Architecture:
    build = HuggingFace(class_name, model_type, fields)
    return Architecture(name, "audio", "ctc", build, speech_batch, middle, draws=True)


def towers(name: str, class_name: str, model_type: str, middle: str, **rest: Any) -> Architecture:
    return Architecture(
        name, "two towers", "contrast", HuggingFace(class_name, model_type, TOWERS), caption_batch, middle, **rest
    )


VISION = (
    classifier("ViT", "ViTForImageClassification", "vit", "vit.layers.1", PATCHES, fast=True),
    classifier("DeiT", "DeiTForImageClassification", "deit", "deit.layers.1", PATCHES),
    classifier("BEiT", "BeitForImageClassification", "beit", "beit.layers.1",
               {**PATCHES, "use_relative_position_bias": True}),
    classifier("Swin", "SwinForImageClassification", "swin", "swin.encoder.layers.1",
               {"image_size": IMAGE, "patch_size": 4, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4],
                "window_size": 4, "num_labels": CLASSES}),
    classifier("ConvNeXt", "ConvNextForImageClassification", "convnext", "convnext.encoder.stages.1",
               {"hidden_sizes": [8, 12], "depths": [2, 2], "num_stages": 2, "num_labels": CLASSES}),
    classifier("ResNet (transformers)", "ResNetForImageClassification", "resnet", "resnet.encoder.stages.1",
               {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2], "num_labels": CLASSES}),
    classifier("RegNet", "RegNetForImageClassification", "regnet", "regnet.encoder.stages.1",
               {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2], "groups_width": 4,
                "num_labels": CLASSES}),
    classifier("EfficientNet", "EfficientNetForImageClassification", "efficientnet", "efficientnet.encoder.blocks.4",
               {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320, "num_labels": CLASSES}),
    classifier("MobileNetV2", "MobileNetV2ForImageClassification", "mobilenet_v2", "mobilenet_v2.layer.8",
               {"depth_multiplier": 0.25, "num_labels": CLASSES}),
    classifier("PoolFormer", "PoolFormerForImageClassification", "poolformer", "poolformer.encoder.block.2.0",
               {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16], "num_labels": CLASSES}),
    segmenter("SegFormer", "SegformerForSemanticSegmentation", "segformer", "segformer.stages.2",
              {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16], "num_attention_heads": [1, 2, 2, 4],
               "decoder_hidden_size": 16, "num_labels": CLASSES}),
)  # fmt: skip

AUDIO = (
    speech("wav2vec2", "Wav2Vec2ForCTC", "wav2vec2", "wav2vec2.encoder.layers.1", SPEECH),
    speech("HuBERT", "HubertForCTC", "hubert", "hubert.encoder.layers.1", SPEECH),
)

TOWER_PAIRS = (
    towers("CLIP", "CLIPModel", "clip", "text_model.encoder.layers.0", fast=True),
    towers("SigLIP", "SiglipModel", "siglip", "text_model.encoder.layers.0"),
)

PERCEPTION_MODELS = (*VISION, *AUDIO, *TOWER_PAIRS)
