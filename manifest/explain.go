package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"mariposa"
)

var tooDeep = fmt.Sprintf("is nested more than %d levels deep", maxDepth)

const (
	noAliases     = "YAML aliases are not supported; write the value itself"
	noCharacter   = "an escape sequence refers to a character that does not exist"
	tabIndents    = "this line is indented with a tab; use spaces"
	quoteQuestion = "the ? in column %d is not allowed inside brackets or braces without quotes; quote the whole value"
	quoteTemplate = "YAML reads the {{ in column %d as a mapping; quote the whole value, as in \"{{ .meta.mode }}\""
	noContent     = "did not find expected node content" // the library's message
	openQuote     = "the quote opened here is never closed"
	libraryFailed = "the library failed"
)

// errLibrary has the form of the library's own errors.
var errLibrary = errors.New("yaml: " + libraryFailed)

// where says which line the library reports for a problem.
type where uint8

const (
	onItsLine   where = iota // the line of the problem, or of the quote that contains it
	atTheParent              // of the brackets or braces that contain it
	unknownLine              // of the whole mapping or list, or none
)

// problems maps the library's messages to ours.
var problems = []struct {
	theirs string
	where  where
	ours   string
}{
	{"mapping values are not allowed", onItsLine, "a value contains a colon followed by a space; quote the value, or check the indentation"},
	{"could not find expected ':'", onItsLine, "a key is not followed by a colon and a space; add them, or check the indentation"},
	{"found a tab character", onItsLine, tabIndents},
	{"found character that cannot start any token", onItsLine, "a value cannot begin with this character; quote it"},
	{"found unexpected end of stream", onItsLine, openQuote},
	{"found unexpected document indicator", onItsLine, openQuote},
	{"found unknown escape character", onItsLine, "unknown escape sequence; write \\\\ for a backslash, or use single quotes"},
	{"did not find expected hexdecimal number", onItsLine, "an escape sequence needs more hexadecimal digits"},
	{"found invalid Unicode character escape code", onItsLine, noCharacter},
	{"block sequence entries are not allowed", onItsLine, "a list cannot begin on the line of its key; begin it on the next line"},
	{"exceeded max depth", onItsLine, tooDeep},
	{"did not find expected ',' or ']'", atTheParent, "the bracket opened here is never closed, or a comma is missing inside it"},
	{"did not find expected ',' or '}'", atTheParent, "the brace opened here is never closed, or a comma is missing inside it"},
	{noContent, atTheParent, "a value is missing, or begins with a character that must be quoted"},
	{"did not find expected <document start>", atTheParent, secondDocument(0).Error()},
	{"unknown anchor", unknownLine, noAliases},
	{libraryFailed, unknownLine, "the YAML parser fails here; simplify this line and those above it"},
	{"", unknownLine, "this is neither a key nor part of the value above; check the indentation, and quote the whole value if text follows a complete value"},
}

// explain says what is wrong with a text that the library refused. It never
// quotes the text.
func explain(text []byte, err error) mariposa.Fault {
	var second secondDocument
	if errors.As(err, &second) {
		return syntaxFault(int(second), err.Error())
	}
	line, problem := refusal(text)
	i := 0
	for !strings.HasPrefix(problem, problems[i].theirs) {
		i++
	}
	p := problems[i]
	switch p.where {
	case onItsLine:
		line-- // the library counts these lines from 1, and the others from 0
	case unknownLine:
		line = problemLine(text, problem)
	}
	line = max(line, 1)
	if end := trimBlank(text); p.theirs == noContent && lineStart(text, line) >= len(end) {
		return syntaxFault(lineAt(end, len(end)), "the last bracket or brace is never closed")
	}
	begin := lineStart(text, line)
	its := text[begin:lineStop(text, begin)]
	for _, u := range unquoted {
		if u.flow == (p.where == atTheParent) {
			if at, column := u.find(text, begin); at > 0 {
				return syntaxFault(at, fmt.Sprintf(u.fault, column))
			}
		}
	}
	if indent := its[:len(its)-len(bytes.TrimLeft(its, " \t"))]; bytes.ContainsRune(indent, '\t') {
		return syntaxFault(line, tabIndents)
	}
	if p.theirs == "" && bytes.HasPrefix(bytes.TrimLeft(its, " "), []byte("- ")) {
		return syntaxFault(line, "a list item is not aligned with the lines above it; check its indentation")
	}
	return syntaxFault(line, p.ours)
}

var libraryError = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// refusal returns the line and the message with which the library refuses a
// text; no message if it does not. It reads the text after an empty line, as
// the library does not report the position of what begins on the first one.
func refusal(text []byte) (line int, problem string) {
	return refusalOf(io.MultiReader(strings.NewReader("\n"), bytes.NewReader(text)))
}

func refusalOf(text io.Reader) (line int, problem string) {
	_, err := decode(text)
	if err == nil {
		return 0, ""
	}
	found := libraryError.FindStringSubmatchIndex(err.Error())
	if found == nil {
		return 0, ""
	}
	if found[2] >= 0 {
		line, _ = strconv.Atoi(err.Error()[found[2]:found[3]])
	}
	return line, err.Error()[found[1]:]
}

// maxTries bounds how often a text is read again to find the line of a problem.
const maxTries = 8

// problemLine finds the line of a problem for which the library reports no
// useful line: the last line without which the problem does not occur. Read
// line by line, the text ends shortly after it.
func problemLine(text []byte, problem string) int {
	r := &lineReader{text: text}
	refusalOf(r)
	text = text[:r.at]
	for range maxTries {
		text = trimBlank(text)
		shorter := text[:lineBegin(text, len(text))]
		if _, still := refusal(shorter); still != problem {
			break
		}
		text = shorter
	}
	return lineAt(text, len(text))
}

// trimBlank cuts off the last line end, and the blank lines before it.
func trimBlank(text []byte) []byte {
	for len(text) > 0 {
		text = bytes.TrimRight(text, "\r\n")
		begin := lineBegin(text, len(text))
		if !isBlank(text[begin:]) {
			break
		}
		text = text[:begin]
	}
	return text
}

// lineReader returns one line at a time.
type lineReader struct {
	text []byte
	at   int
}

func (r *lineReader) Read(into []byte) (int, error) {
	if r.at == len(r.text) {
		return 0, io.EOF
	}
	n := copy(into, r.text[r.at:min(len(r.text), lineStop(r.text, r.at)+1)])
	r.at += n
	return n, nil
}

// lineStart returns where the line with a number begins.
func lineStart(text []byte, line int) int {
	at := 0
	for ; line > 1 && at < len(text); line-- {
		at = nextLine(text, at)
	}
	return at
}

// unquoted lists what must not be written without quotes: as the value on a
// line, or in the brackets and braces that open on it.
var unquoted = []unquotedText{
	{false, regexp.MustCompile(`(?:^|[:-])\s+(\{\{)`), quoteTemplate},
	{true, regexp.MustCompile(`(\{\{)`), quoteTemplate},
	{true, regexp.MustCompile(`(\?)`), quoteQuestion},
}

type unquotedText struct {
	flow  bool
	begin *regexp.Regexp
	fault string
}

var quotedOrComment = regexp.MustCompile(`"(?:\\.|[^"\\])*"|'[^']*'|(?:^|\s)#[^\r\n]*`)

// maxRegion bounds how far find searches.
const maxRegion = 64 << 10

// find returns the line and column of the text; 0 if it is not on the line that
// begins there.
func (u unquotedText) find(text []byte, begin int) (line, column int) {
	end := lineStop(text, begin)
	if u.flow {
		end = flowEnd(text, begin)
	}
	end = min(end, begin+maxRegion)
	region := quotedOrComment.ReplaceAllFunc(text[begin:end], func(found []byte) []byte { return bytes.Repeat([]byte("x"), len(found)) })
	found := u.begin.FindSubmatchIndex(region)
	if found == nil {
		return 0, 0
	}
	at := begin + found[2]
	return lineAt(text, at), 1 + utf8.RuneCount(text[lineBegin(text, at):at])
}

// flowEnd returns where the brackets and braces that open on a line end at the
// latest: at the next line that is not indented further and does not close
// them.
func flowEnd(text []byte, begin int) int {
	indent := func(at int) int { return len(text[at:]) - len(bytes.TrimLeft(text[at:], " ")) }
	at := nextLine(text, begin)
	for at < len(text) {
		line := bytes.TrimLeft(text[at:lineStop(text, at)], " \t")
		if len(line) > 0 && line[0] != ']' && line[0] != '}' && indent(at) <= indent(begin) {
			break
		}
		at = nextLine(text, at)
	}
	return at
}
