package manifest

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// spelling is one way to write a text in a document of values: on one line, or
// as a block of lines.
type spelling struct {
	text  string
	head  string // of a block: | and what follows it
	lines []string
}

// spellings lists the ways to write a text, the most readable first. The last
// of them always works.
func spellings(text string, braces bool) []spelling {
	var all []spelling
	if s, ok := asBlock(text); ok && !braces {
		all = append(all, s)
	}
	if one := oneLine(text, braces); one != quoted(text) {
		all = append(all, spelling{text: one})
	}
	return append(all, spelling{text: quoted(text)})
}

// oneLine writes a text without quotes if it reads back unchanged, else with quotes. In
// braces, everything that JSON would quote is quoted, because the document may be JSON.
func oneLine(text string, braces bool) string {
	bare := plainText(text)
	if braces {
		bare = jsonWord(text)
	}
	if bare {
		return text
	}
	return quoted(text)
}

// plainText reports whether a text can be written without quotes. Some that could be are
// quoted anyway, because other YAML readers interpret them differently.
func plainText(text string) bool {
	if text == "" || len(text) > 256 || strings.ContainsAny(text, "\r\n\t") || !printable(text) {
		return false
	}
	first := rune(text[0])
	if !pathChar(first) && !strings.ContainsRune("./+", first) && first < 0x80 {
		return false
	}
	switch strings.ToLower(text) {
	case "y", "n", "yes", "no", "on", "off":
		return false
	}
	root, faults := read([]byte("k: " + text + "\n"))
	if root == nil || len(faults) > 0 || len(root.Content) != 2 {
		return false
	}
	value := root.Content[1]
	return value.Kind == yaml.ScalarNode && value.Value == text && kindOf(value) != kindNull
}

// jsonWord reports whether a text is a number or a boolean in JSON.
func jsonWord(text string) bool {
	if text == "true" || text == "false" {
		return true
	}
	digits := strings.TrimPrefix(text, "-")
	if digits == "" || len(digits) > 15 || strings.Trim(digits, "0123456789") != "" {
		return false
	}
	return digits == "0" || digits[0] != '0'
}

// quoted writes a text in double quotes, as both YAML and JSON read it.
func quoted(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c == '\r':
			b.WriteString(`\r`)
		case c <= 0xffff && !unicode.IsPrint(c):
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// asBlock writes a text of several lines as a block.
func asBlock(text string) (spelling, bool) {
	body := strings.TrimSuffix(text, "\n")
	if !strings.Contains(text, "\n") || body == "" || strings.HasSuffix(body, "\n") || !printable(text) {
		return spelling{}, false
	}
	s := spelling{head: "|", lines: strings.Split(body, "\n")}
	for _, line := range s.lines {
		if strings.TrimRight(line, " \t") != line { // these are invisible, and editors remove them
			return spelling{}, false
		}
	}
	if first := strings.TrimLeft(body, "\n")[0]; first == ' ' || first == '\t' {
		s.head += "2" // the first line does not show where the block begins
	}
	if body == text {
		s.head += "-"
	}
	return s, readsAs([]byte(s.line("k", 0)), map[string]string{"k": text})
}

// printable reports whether a text may be written in a document without
// escapes.
func printable(text string) bool {
	return strings.IndexFunc(text, func(c rune) bool { return c != '\n' && c != '\t' && !unicode.IsPrint(c) }) < 0
}

// line writes a whole entry whose key is in a column.
func (s spelling) line(key string, column int) string {
	text := s.text
	if s.lines != nil {
		text = s.block(column)
	}
	return strings.Repeat(" ", column) + key + ": " + text + "\n"
}

// block writes the lines of a block, without the last line end.
func (s spelling) block(column int) string {
	var b strings.Builder
	b.WriteString(s.head)
	for _, line := range s.lines {
		b.WriteByte('\n')
		if line != "" {
			b.WriteString(strings.Repeat(" ", column+2) + line)
		}
	}
	return b.String()
}

// written writes a new document.
func written(texts map[string]string) []byte {
	var b bytes.Buffer
	for _, key := range sortedKeys(texts) {
		b.WriteString(spelling{text: oneLine(texts[key], false)}.line(key, 0))
	}
	return b.Bytes()
}
