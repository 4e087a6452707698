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

// Masked stands in the place of a secret.
const Masked = "••••"

const (
	minSecret       = 4 // what is shorter is no secret, and would be found everywhere
	minLine         = 8 // likewise, of the lines of a longer secret
	minLengthInside = 6 // likewise, of base64
	// shortSecret is the length up to which a secret is looked for inside longer
	// base64, in Go's quotes and as a password in a URL. Longer ones do not get
	// there, and each form costs memory.
	shortSecret = 64 << 10
)

// Mask hides secrets in texts: as they are, and in the forms they take when they
// are written into JSON, quotes, addresses and base64. Every byte that belongs to
// a secret is hidden, so where secrets overlap, or one is part of another, one
// Masked stands for all. It takes about 6 bytes of memory for each byte of each
// form. A mask is safe for concurrent use; a nil one hides nothing.
type Mask struct{ words *automaton }

// NewMask makes a mask for secrets. Those that are shorter than 4 bytes or only
// white space are ignored.
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
	_, _ = io.WriteString(w, s) // a builder takes everything
	_ = w.Close()
	return b.String()
}

// Format keeps the secrets out of whatever a mask is printed into.
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
	// A value that was read from a file ends with a line feed, and is shown without.
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

// addEscaped adds a value as it is, and as it stands in JSON (with and without
// regard for HTML), in the parts of a URL, and in Go's quotes.
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
	f.add(url.UserPassword("", s).String()[1:]) // behind the colon
}

func inJSON(s string, html bool) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(html)
	if e.Encode(s) != nil {
		return s // every string becomes JSON
	}
	return inQuotes(strings.TrimSuffix(b.String(), "\n"))
}

func inQuotes(s string) string { return s[1 : len(s)-1] }

// addBase64 adds what base64 makes of a value, alone or as a part of something
// longer (like user:password in a header). What base64 makes of three bytes
// depends on them alone, so there are three ways for a value to lie in it.
func (f formSet) addBase64(s string) {
	for before := range 3 {
		if before > 0 && len(s) > shortSecret {
			return
		}
		all := append(make([]byte, before), s...)
		// Six bits make a character: these are the ones that are the value's alone.
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
