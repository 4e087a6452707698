package api

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Package encoding/json replaces invalid UTF-8 and halves of surrogate pairs without an
// error. What is stored would then differ from what was sent, so such bodies are rejected.

// errNotText is the error for a string in a JSON document that is not valid text. It is
// the path to the string, which is empty for a document that is itself a string.
type errNotText string

func (e errNotText) Error() string { return string(e) + notText }

const notText = ` must be UTF-8 text: it contains invalid bytes, or half of a surrogate pair such as \ud800`

// bodyWalker reads the tokens of a JSON document.
type bodyWalker struct {
	body []byte
	d    *json.Decoder
}

func newBodyWalker(body []byte) *bodyWalker {
	return &bodyWalker{body: body, d: json.NewDecoder(bytes.NewReader(body))}
}

// token returns the next token. It returns an error for a string that is not valid text;
// path is where the token is in the document.
func (w *bodyWalker) token(path string) (json.Token, error) {
	from := w.d.InputOffset()
	token, err := w.d.Token()
	if _, isString := token.(string); isString && !isJSONText(w.body[from:w.d.InputOffset()]) {
		return nil, errNotText(path)
	}
	return token, err
}

// isJSONText reports whether the source of a JSON string is valid text.
func isJSONText(source []byte) bool {
	if !utf8.Valid(source) {
		return false
	}
	for {
		at := bytes.IndexByte(source, '\\')
		if at < 0 {
			return true
		}
		source = source[at:]
		first, isCode := codeUnit(source)
		switch {
		case !isCode:
			source = source[2:] // the decoder has checked that a character follows
		case !utf16.IsSurrogate(first):
			source = source[unitLength:]
		default:
			second, isPair := codeUnit(source[unitLength:])
			if !isPair || utf16.DecodeRune(first, second) == utf8.RuneError {
				return false
			}
			source = source[2*unitLength:]
		}
	}
}

// unitLength is the length of an escape such as \u00e9.
const unitLength = 6

// codeUnit returns the UTF-16 code unit of an escape at the beginning of a source.
func codeUnit(source []byte) (rune, bool) {
	if len(source) < unitLength || source[0] != '\\' || source[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(string(source[2:unitLength]), 16, 16)
	return rune(unit), err == nil
}
