"""The thesis' scenarios of self-adaptation: EMMA with and without scaling, and factories that open and close."""
