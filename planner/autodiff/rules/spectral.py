"""Fourier transforms: linear, so their backward needs little more than shapes."""

from __future__ import annotations

from .op_call import RuleCall, Saved, item_nbytes, table


def _is_complex(shape: tuple[int, ...]) -> bool:
    """ONNX writes a complex number as a last dimension of two."""
    return shape[-1] == 2


def _fourier(call: RuleCall) -> Saved:
    """torch.fft saves a real input, for its type."""
    return Saved() if _is_complex(call.first.shape) else Saved(inputs=(0,))


def _short_time_fourier(call: RuleCall) -> Saved:
    """torch.stft: frames of the signal times the window, which are saved if they are real.

    Without a window the frames are a view of the signal. One-sided spectra of real frames of length n have n // 2 + 1
    bins; the longer of the two lengths is charged.
    """
    signal, spectrum = call.first, call.output.shape
    if not call.has(2):
        return Saved(inputs=(0,))
    length = call.required(2).shape[0] if call.required(2).shape else spectrum[-2]
    complex_signal = len(signal.shape) > 2 and _is_complex(signal.shape)
    framed = spectrum[0] * spectrum[1] * length * item_nbytes(signal)
    inputs = ((0,) if call.needed(2) else ()) + ((2,) if call.needed(0) else ())
    return Saved(inputs, (), () if complex_signal else (framed,))


RULES = table({_fourier: "DFT", _short_time_fourier: "STFT"})
