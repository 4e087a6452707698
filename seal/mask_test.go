package seal

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestASecretIsMaskedInEveryFormItTakes(t *testing.T) {
	t.Parallel()
	const hard = "p<a&s>s \"w\\ö/rd\"?:@+=\x01"
	const key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nshort\n  kqhkiG9w0BAQEF  \n-----END KEY-----\n"
	marshal := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	basic := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

	for _, c := range []struct {
		name, secret, text, want string
	}{
		{"as it is", "hunter2!", "the password is hunter2!, is it?", "the password is ••••, is it?"},
		{"twice, side by side", "hunter2!", "hunter2!hunter2!", "••••••••"},
		{"where it overlaps itself", "abcabc", "abcabcabc.", "••••."},
		{"in JSON", hard, `{"v":` + marshal(hard) + `}`, `{"v":"••••"}`},
		{"in JSON that is not for HTML", hard, `{"v":"p<a&s>s \"w\\ö/rd\"?:@+=\u0001"}`, `{"v":"••••"}`},
		{"in Go's quotes", hard, fmt.Sprintf("bad value %q", hard), `bad value "••••"`},
		{"in Go's quotes without accents", hard, fmt.Sprintf("bad value %+q", hard), `bad value "••••"`},
		{"in a query", hard, "/x?k=" + url.QueryEscape(hard) + "&b=1", "/x?k=••••&b=1"},
		{"in a path", hard, "/x/" + url.PathEscape(hard) + "/y", "/x/••••/y"},
		{"in the address of a database", hard, "db://" + url.UserPassword("me", hard).String() + "@host", "db://me:••••@host"},
		{"in base64", "hunter2!", "v=" + basic("hunter2!") + ";", "v=••••;"},
		{"in base64 without padding", "hunter2!", "v=" + base64.RawStdEncoding.EncodeToString([]byte("hunter2!")) + ";", "v=••••;"},
		{"in base64 for URLs", "\xff\xfe\xfd\xfc\xfb", base64.URLEncoding.EncodeToString([]byte("\xff\xfe\xfd\xfc\xfb")), "••••"},
		{"in base64 for URLs without padding", "\xff\xfe\xfd\xfc\xfb", base64.RawURLEncoding.EncodeToString([]byte("\xff\xfe\xfd\xfc\xfb")), "••••"},
		{"whole, though its lines are looked for too", key, "key: " + key + "end", "key: ••••end"},
		{"a line of it alone", key, "at MIIEvQIBADANBg:", "at ••••:"},
		{"an indented line of it alone", key, "at kqhkiG9w0BAQEF:", "at ••••:"},
		{"a short line of it says nothing", key, "it is short", "it is short"},
		{"without its line feed", "abcde\n", "abcde", "••••"},
		{"too short", "abc", "abc", "abc"},
		{"white space", " \n\t \n", "a \n\t \nb", "a \n\t \nb"},
		{"no secret in it", "hunter2!", "hunter1!", "hunter1!"},
		{"an empty text", "hunter2!", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := NewMask([]string{c.secret}).Text(c.text); got != c.want {
				t.Errorf("%q became\n%q, want\n%q", c.text, got, c.want)
			}
		})
	}
}

func TestAPasswordInAHeaderIsMaskedWhereverItLies(t *testing.T) {
	t.Parallel()
	const secret = "hunter2!#zwölf"
	m := NewMask([]string{secret})
	for _, before := range []string{"", "a", "ab", "abc", "me:", "you:", "them:"} {
		for _, after := range []string{"", ".", "..", "..."} {
			text := base64.StdEncoding.EncodeToString([]byte(before + secret + after))
			got := m.Text("Authorization: Basic " + text)
			// At its edges a character may be shared with a neighbor.
			left := strings.ReplaceAll(got, Masked, "")
			if !strings.Contains(got, Masked) || len(left) > len("Authorization: Basic ")+2+base64.StdEncoding.EncodedLen(len(before))+base64.StdEncoding.EncodedLen(len(after)) {
				t.Errorf("before %q, after %q: %s", before, after, got)
			}
		}
	}
}

func TestLongerSecretsWinOverTheirParts(t *testing.T) {
	t.Parallel()
	m := NewMask([]string{"pass", "password1", "word", "1234", "5678"})
	for text, want := range map[string]string{
		"password1 pass word": "•••• •••• ••••",
		"password2":           "••••••••2",
		"12345678":            "••••••••",
		"passwordpassword1":   "••••••••••••",
	} {
		if got := m.Text(text); got != want {
			t.Errorf("%s became %s, want %s", text, got, want)
		}
	}
}

func TestAMaskWithoutSecretsHidesNothing(t *testing.T) {
	t.Parallel()
	for _, m := range []*Mask{nil, NewMask(nil), NewMask([]string{"", "abc", "    "})} {
		var b strings.Builder
		w := m.Writer(&b)
		io.WriteString(w, "abc    ")
		if err := w.Close(); err != nil || b.String() != "abc    " || m.Text("abc    ") != "abc    " {
			t.Errorf("%q, %v", b.String(), err)
		}
	}
}

func TestAStreamHoldsBackOnlyWhatMayBeASecret(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	w := NewMask([]string{"secret-1", "cretaceous"}).Writer(&b)
	for _, c := range []struct{ write, shown string }{
		{"a se", "a "},
		{"cret", "a "},
		{"a", "a se"},
		{"b", "a secretab"},
		{" secret-", "a secretab "},
		{"1", "a secretab ••••"},
		{"2", "a secretab ••••2"},
		{"secret", "a secretab ••••2"},
	} {
		if n, err := io.WriteString(w, c.write); n != len(c.write) || err != nil {
			t.Fatal(n, err)
		}
		if b.String() != c.shown {
			t.Fatalf("after %q: %q is shown, want %q", c.write, b.String(), c.shown)
		}
	}
	if err := w.Flush(); err != nil || b.String() != "a secretab ••••2secret" {
		t.Fatalf("%q, %v", b.String(), err)
	}
	io.WriteString(w, "-1")
	if err := w.Close(); err != nil || b.String() != "a secretab ••••2secret-1" {
		t.Fatalf("after a flush a new text begins: %q, %v", b.String(), err)
	}
}

// Prefixes of lines, such as their times, do not keep a secret of several lines from being
// found.
func TestPrefixesOfLinesAreNotPartOfTheText(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		secrets []string
		text    string
		want    string
	}{
		"no secrets":                   {nil, "a\nb\n", "> a\n> b\n"},
		"none in it":                   {[]string{"secret"}, "a\nb\n", "> a\n> b\n"},
		"inside a line":                {[]string{"secret"}, "a secret b\nc\n", "> a •••• b\n> c\n"},
		"a whole line":                 {[]string{"secret"}, "secret\nb\n", "> ••••\n> b\n"},
		"of two lines":                 {[]string{"pa\nss"}, "a pa\nss b\nc\n", "> a •••• b\n> c\n"},
		"of two lines, from the start": {[]string{"pa\nss"}, "pa\nss\nc\n", "> ••••\n> c\n"},
		"with the end of its line":     {[]string{"pass\n"}, "pw=pass\nc\n", "> pw=••••\n> c\n"},
		"one after the other":          {[]string{"pass"}, "pass\npass\n", "> ••••\n> ••••\n"},
		"nearly":                       {[]string{"pa\nss"}, "a pa\nsx b\n", "> a pa\n> sx b\n"},
		"half at the end":              {[]string{"pa\nss"}, "a pa\ns", "> a pa\n> s"},
		"overlapping":                  {[]string{"ab\nab"}, "ab\nab\nab\nc\n", "> ••••\n> c\n"},
	} {
		for _, size := range []int{1, 2, 100} {
			var b strings.Builder
			w := NewMask(c.secrets).Writer(&b)
			for line := range strings.Lines(c.text) {
				w.BeginLine("> ")
				for part := range slices.Chunk([]byte(line), size) {
					w.Write(part)
				}
			}
			if err := w.Close(); err != nil || b.String() != c.want {
				t.Errorf("%s, in pieces of %d: %q (%v), want %q", name, size, b.String(), err, c.want)
			}
		}
	}
}

// The end of a text may be the first part of a secret, whose rest is not written yet or
// never comes.
func TestTheEndOfATextShowsNoPartOfASecret(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		secrets             []string
		text                string
		discarded, masked   string
		discardedL, maskedL string // with prefixes of lines
	}{
		"no secrets":            {nil, "a sec", "a sec", "a sec", "> a sec", "> a sec"},
		"nothing held back":     {[]string{"secret"}, "secret a\n", "•••• a\n", "•••• a\n", "> •••• a\n", "> •••• a\n"},
		"a part":                {[]string{"secret"}, "a secre", "a ", "a ••••", "> a ", "> a ••••"},
		"a short part":          {[]string{"secret"}, "a sec", "a ", "a sec", "> a ", "> a sec"},
		"a part on its line":    {[]string{"secret"}, "a\nsecre", "a\n", "a\n••••", "> a\n", "> a\n> ••••"},
		"a part of two lines":   {[]string{"pass\nword"}, "a pass\nwo", "a ", "a ••••", "> a ", "> a ••••"},
		"a secret in a longer":  {[]string{"secret", "secrets of all"}, "a secrets of", "a ••••", "a ••••", "> a ••••", "> a ••••"},
		"a secret, then a part": {[]string{"secret"}, "secretsecre", "••••", "••••••••", "> ••••", "> ••••••••"},
	} {
		for _, size := range []int{1, 3, 100} {
			for _, prefix := range []string{"", "> "} {
				write := func(end func(*MaskWriter) error) string {
					var b strings.Builder
					w := NewMask(c.secrets).Writer(&b)
					for line := range strings.Lines(c.text) {
						w.BeginLine(prefix)
						for part := range slices.Chunk([]byte(line), size) {
							w.Write(part)
						}
					}
					if err := end(w); err != nil {
						t.Error(err)
					}
					return b.String()
				}
				discarded, masked := c.discarded, c.masked
				if prefix != "" {
					discarded, masked = c.discardedL, c.maskedL
				}
				if got := write((*MaskWriter).Discard); got != discarded {
					t.Errorf("%s, in pieces of %d: %q after discarding, want %q", name, size, got, discarded)
				}
				if got := write((*MaskWriter).CloseMasked); got != masked {
					t.Errorf("%s, in pieces of %d: %q after masking, want %q", name, size, got, masked)
				}
			}
		}
	}
}

// A secret that becomes known while a text is written is masked from then on, even if its
// first part is held back as the beginning of another.
func TestAMaskCanBeSwitchedInTheMiddleOfASecret(t *testing.T) {
	t.Parallel()
	first, second := NewMask([]string{"secret"}), NewMask([]string{"secret", "sector"})
	for name, c := range map[string]struct{ before, after, want string }{
		"the known one": {"> a sec|b\n> se", "cret\n", "> a sec|b\n> ••••\n"},
		"the new one":   {"a sec", "tor b", "a •••• b"},
		"neither":       {"a sec", "ret b sec", "a •••• b sec"},
		"done before":   {"secret sec", "ular", "•••• secular"},
	} {
		var b strings.Builder
		w := first.Writer(&b)
		io.WriteString(w, c.before)
		w.Switch(second)
		w.Switch(nil) // changes nothing
		io.WriteString(w, c.after)
		if err := w.Close(); err != nil || b.String() != c.want {
			t.Errorf("%s: %q (%v), want %q", name, b.String(), err, c.want)
		}
	}
	var b strings.Builder
	w := (*Mask)(nil).Writer(&b)
	io.WriteString(w, "secret ")
	w.Switch(first)
	io.WriteString(w, "secret")
	if err := w.Close(); err != nil || b.String() != "secret ••••" {
		t.Errorf("from nothing: %q (%v)", b.String(), err)
	}
}

func TestAWriterTellsThatItCannotWrite(t *testing.T) {
	t.Parallel()
	full := errors.New("full")
	w := NewMask([]string{"secret"}).Writer(failing{full})
	if _, err := io.WriteString(w, "secre"); err != nil {
		t.Fatalf("nothing was let out yet: %v", err)
	}
	for range 2 {
		if _, err := io.WriteString(w, "ts"); !errors.Is(err, full) {
			t.Fatal(err)
		}
	}
	if err := w.Close(); !errors.Is(err, full) {
		t.Fatal(err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestPrintingAMaskShowsNoSecret(t *testing.T) {
	t.Parallel()
	m := NewMask([]string{"hunter2!"})
	var b strings.Builder
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "mask", m)
	for _, text := range []string{fmt.Sprintf("%v %+v %#v %s", m, m, m, m), b.String()} {
		if strings.Contains(text, "hunter2!") || !strings.Contains(text, "mask") {
			t.Error(text)
		}
	}
}

// overlapping is what Text has to be, found the slow way: every byte of every
// word is hidden.
func overlapping(words []string, text string) string {
	var spans []span
	for _, w := range words {
		for i := 0; i+len(w) <= len(text); i++ {
			if text[i:i+len(w)] == w {
				spans = append(spans, span{int64(i), int64(i + len(w))})
			}
		}
	}
	slices.SortFunc(spans, func(a, b span) int {
		if a.from != b.from {
			return int(a.from - b.from)
		}
		return int(b.to - a.to)
	})
	var b strings.Builder
	shown := int64(0)
	for i := 0; i < len(spans); {
		from, to := spans[i].from, spans[i].to
		for ; i < len(spans) && (spans[i].from < to); i++ {
			to = max(to, spans[i].to)
		}
		b.WriteString(text[shown:from] + Masked)
		shown = to
	}
	return b.String() + text[shown:]
}

func TestWhateverPiecesATextComesInItIsMaskedAsAWhole(t *testing.T) {
	t.Parallel()
	// Few letters, so that words overlap, begin and end within each other.
	letters := rapid.StringMatching(`[ab]{4,12}`)
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(letters, 1, 6).Draw(t, "words")
		text := rapid.StringMatching(`[abc]{0,200}`).Draw(t, "text")
		set := formSet{}
		for _, w := range words {
			set.add(w)
		}
		m := &Mask{newAutomaton(set)}
		want := overlapping(words, text)
		if got := m.Text(text); got != want {
			t.Fatalf("Text: %q, want %q", got, want)
		}
		var b strings.Builder
		w := m.Writer(&b)
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			io.WriteString(w, rest[:n])
			rest = rest[n:]
		}
		w.Close()
		if b.String() != want {
			t.Fatalf("in pieces: %q, want %q", b.String(), want)
		}
	})
}

func TestLongStreamsInOddPiecesAreMaskedAsAWhole(t *testing.T) {
	t.Parallel()
	secret := strings.Repeat("line of a long secret\n", 4000) + "end"
	text := strings.Repeat("x"+secret[:len(secret)-1]+secret+"y", 5)
	m := NewMask([]string{secret})
	want := m.Text(text)
	if strings.Contains(want, "line of") {
		t.Fatal("a line is left")
	}
	for _, size := range []int{1, 7, piece - 1, piece, piece + 1} {
		var b strings.Builder
		w := m.Writer(&b)
		for part := range slices.Chunk([]byte(text), size) {
			w.Write(part)
		}
		w.Close()
		if b.String() != want {
			t.Fatalf("pieces of %d bytes give another text", size)
		}
	}
}

func FuzzMask(f *testing.F) {
	f.Add("secret", "a secret and a secretsecret", 3)
	f.Add("aaaa", "aaaaaaaaab", 1)
	f.Add("ab\nabababab\n", "abababab", 2)
	f.Add("\xff\x00\xff\x00", "\xff\x00\xff\x00\xff", 5)
	f.Fuzz(func(t *testing.T, secret, text string, size int) {
		if secret == "" {
			secret = "????"
		}
		word := &Mask{newAutomaton(formSet{secret: {}})}
		got := word.Text(text)
		if want := overlapping([]string{secret}, text); got != want {
			t.Fatalf("%q in %q gives %q, want %q", secret, text, got, want)
		}
		if apart(secret) && got != strings.ReplaceAll(text, secret, Masked) {
			t.Fatalf("%q in %q gives %q", secret, text, got)
		}

		m := NewMask([]string{secret})
		whole := m.Text(text)
		if len(secret) >= minSecret && strings.TrimSpace(secret) != "" && !strings.ContainsAny(secret, "\xe2\x80\xa2•") && strings.Contains(whole, secret) {
			t.Fatalf("%q is left in %q", secret, whole)
		}
		var b strings.Builder
		w := m.Writer(&b)
		for part := range slices.Chunk([]byte(text), max(1, size)) {
			w.Write(part)
		}
		if w.Close(); b.String() != whole {
			t.Fatalf("in pieces of %d: %q, want %q", size, b.String(), whole)
		}
	})
}

// apart reports whether a word cannot overlap itself.
func apart(word string) bool {
	for n := 1; n < len(word); n++ {
		if strings.HasPrefix(word, word[n:]) {
			return false
		}
	}
	return true
}

// The worst there is for a search: a long secret that a text nearly repeats.
// Were it not linear, this would not end.
func TestMaskingIsLinear(t *testing.T) {
	t.Parallel()
	secret := strings.Repeat("a", 1<<20) + "b"
	m := NewMask([]string{secret, "aaaaaaaac"})
	text := strings.Repeat("a", 3<<20)
	if m.Text(text) != text {
		t.Fatal("there is no secret in it")
	}
	if got := m.Text(text + "b"); got != text[:2<<20]+Masked {
		t.Fatalf("%d bytes are left", len(got))
	}
	var b strings.Builder
	w := m.Writer(&b)
	w.Write([]byte(text[:1<<20]))
	for range 1 << 18 {
		w.Write([]byte("a"))
	}
	if b.Len() != 1<<18 {
		t.Fatalf("%d bytes are shown, the others may be the beginning of the secret", b.Len())
	}
	w.Write([]byte("b"))
	if w.Close(); b.Len() != 1<<18+len(Masked) {
		t.Fatalf("%d bytes are shown", b.Len())
	}
}

func BenchmarkText(b *testing.B) {
	var secrets []string
	for i := range 100 {
		secrets = append(secrets, fmt.Sprintf("secret-%032d", i))
	}
	m := NewMask(secrets)
	line := strings.Repeat("2026-11-15 12:00:00 some line of a log that says nothing of interest; ", 100)
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		m.Text(line)
	}
}

func BenchmarkNewMask(b *testing.B) {
	long := strings.Repeat("line of a long secret with ümläuts & <signs>\n", 1<<20/48)
	b.SetBytes(int64(len(long)))
	b.ReportAllocs()
	for b.Loop() {
		NewMask([]string{long})
	}
}
