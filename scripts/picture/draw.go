package main

import (
	"fmt"
	"html"
	"strings"
)

// Sizes of the picture, in pixels.
const (
	charWidth  = 8.43 // width of a character at 14 px
	lineHeight = 20
	margin     = 20
	bar        = 36 // height of the title bar
)

// draw renders lines as an SVG picture of a terminal.
func draw(lines []line) string {
	columns := 80
	for _, l := range lines {
		columns = max(columns, len(l))
	}
	w, h := int(float64(columns)*charWidth)+2*margin, len(lines)*lineHeight+bar+margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="Mariposa in a terminal">`+"\n", w, h, w, h)
	b.WriteString(`<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#c9d1d9;white-space:pre}.b{font-weight:600;fill:#f0f6fc}.d{fill:#8b949e}</style>` + "\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#0d1117"/>`+"\n", w, h)
	for n, c := range []string{"#ff5f57", "#febc2e", "#28c840"} {
		fmt.Fprintf(&b, `<circle cx="%d" cy="18" r="5" fill="%s"/>`+"\n", margin+n*18, c)
	}
	for n, l := range lines {
		if len(l) > 0 {
			fmt.Fprintf(&b, `<text x="%d" y="%d" xml:space="preserve">%s</text>`+"\n", margin, bar+(n+1)*lineHeight-5, spans(l))
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// spans renders a line, with one element for each run of characters of the same look.
func spans(l line) string {
	var b strings.Builder
	for start := 0; start < len(l); {
		end := start
		var text strings.Builder
		for end < len(l) && l[end].look == l[start].look {
			text.WriteRune(l[end].char)
			end++
		}
		b.WriteString(span(l[start].look, html.EscapeString(text.String()), start))
		start = end
	}
	return b.String()
}

// span renders characters of the same look. It places each of them at its column, so that
// the columns align in any font.
func span(l look, text string, column int) string {
	attributes := fmt.Sprintf(` x="%.2f"`, margin+float64(column)*charWidth)
	switch {
	case l.color != "":
		attributes += fmt.Sprintf(` style="fill:%s"`, l.color)
	case l.bold:
		attributes += ` class="b"`
	case l.dim:
		attributes += ` class="d"`
	}
	return "<tspan" + attributes + ">" + text + "</tspan>"
}
