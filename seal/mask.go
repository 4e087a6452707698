package seal

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
)

// Masked replaces a secret.
const Masked = "••••"

const (
	minSecret       = 4 // anything shorter is no secret, and would be found everywhere
	minLine         = 8 // likewise, for the lines of a longer secret
	minLengthInside = 6 // likewise, for base64
	// shortSecret is the length up to which a secret is looked for inside longer
	// base64, in Go's quotes and as a password in a URL. Longer ones do not occur
	// there, and each form costs memory.
	shortSecret = 64 << 10
)

// Mask hides secrets in texts: as they are, and in the forms they take in JSON,
// quotes, URLs and base64. Every byte that belongs to a secret is hidden, so if
// secrets overlap, or one is part of another, one Masked replaces all of them. A mask
// takes about 6 bytes of memory for each byte of each form. It is safe for concurrent
// use; a nil one hides nothing.
type Mask struct{ words *automaton }

// NewMask returns a mask for secrets. It ignores those that are shorter than 4 bytes
// or only white space.
func NewMask(secrets []string) *Mask {
	forms := formSet{}
	for _, s := range secrets {
		forms.addSecret(s)
	}
	if len(forms) == 0 {
		return nil
	}
	return &Mask{words: newAutomaton(forms)}
}

// Text returns a text with every secret in it masked.
func (m *Mask) Text(s string) string {
	if m == nil || !m.words.anyIn(s) {
		return s
	}
	var b strings.Builder
	w := m.Writer(&b)
	_, _ = io.WriteString(w, s) // a builder never fails
	_ = w.Close()
	return b.String()
}

// Format keeps the secrets out of printed output.
func (m *Mask) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "mask") }

// formSet is every form of every secret, once.
type formSet map[string]struct{}

func (f formSet) add(form string) { f[form] = struct{}{} }

func (f formSet) addSecret(s string) {
	bare := strings.TrimSpace(s)
	if len(s) < minSecret || bare == "" {
		return
	}
	f.addEscaped(s)
	f.addBase64(s)
	// A value that was read from a file ends with a line feed, and is shown without
	// it.
	if len(bare) >= minSecret {
		f.addEscaped(bare)
		f.addBase64(bare)
	}
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); len(line) >= minLine {
			f.addEscaped(line)
		}
	}
}

// addEscaped adds a value as it is, and as it appears in JSON (with and without HTML
// escaping), in the parts of a URL, and in Go's quotes.
func (f formSet) addEscaped(s string) {
	f.add(s)
	f.add(inJSON(s, true))
	f.add(inJSON(s, false))
	f.add(url.QueryEscape(s))
	f.add(url.PathEscape(s))
	if len(s) > shortSecret {
		return
	}
	f.add(inQuotes(strconv.Quote(s)))
	f.add(inQuotes(strconv.QuoteToASCII(s)))
	f.add(url.UserPassword("", s).String()[1:]) // after the colon
}

func inJSON(s string, html bool) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(html)
	if e.Encode(s) != nil {
		return s // every string can be encoded
	}
	return inQuotes(strings.TrimSuffix(b.String(), "\n"))
}

func inQuotes(s string) string { return s[1 : len(s)-1] }

// addBase64 adds the base64 forms of a value, alone or as a part of something longer
// (like user:password in a header). Base64 encodes three bytes at a time, so a value
// can be encoded at three offsets.
func (f formSet) addBase64(s string) {
	for before := range 3 {
		if before > 0 && len(s) > shortSecret {
			return
		}
		all := append(make([]byte, before), s...)
		// A character encodes six bits: these characters depend on the value alone.
		from, to := (before*8+5)/6, len(all)*8/6
		for _, alphabet := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			padded := alphabet.EncodeToString(all)
			for _, form := range []string{padded[from:], strings.TrimRight(padded[from:], "="), padded[from:to]} {
				if len(form) >= minLengthInside {
					f.add(form)
				}
			}
		}
	}
}
