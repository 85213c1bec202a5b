"""All programs."""

from __future__ import annotations

from . import forms, layers, models, readouts
from .program import Program

PROGRAMS: tuple[Program, ...] = (*layers.PROGRAMS, *readouts.PROGRAMS, *models.PROGRAMS, *forms.PROGRAMS)
