package compose

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"mariposa"
)

// source is the Compose file as written, for the lines of notes and errors. It never
// expands aliases, so its size is bounded by that of the file.
type source struct {
	docs  []*yaml.Node
	index map[*yaml.Node]map[string]int // of mappings and lists: position of each name
}

// spot is a place in the file.
type spot struct {
	line  int
	path  string
	steps []string   // those that were found, entries of lists by their number
	node  *yaml.Node // nil: not written in this file
}

// maxFollowed bounds how many aliases, merge keys and extended services one search
// follows.
const maxFollowed = 64

func readSource(text []byte) (s *source, err error) {
	defer func() {
		if recover() != nil { // bugs of the library can cause a panic
			s, err = nil, fault(mariposa.Fault{Code: mariposa.FaultSyntax, Message: "is not YAML that can be read"})
		}
	}()
	s = &source{index: map[*yaml.Node]map[string]int{}}
	d := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc yaml.Node
		if err := d.Decode(&doc); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, syntaxError(err)
		}
		if len(doc.Content) > 0 {
			s.docs = append(s.docs, doc.Content[0])
		}
	}
	if len(s.docs) == 0 {
		return nil, mariposa.Errorf(mariposa.InvalidArgument, "the Compose file is empty")
	}
	sizes := map[*yaml.Node]int{}
	for _, doc := range s.docs {
		if expanded(doc, sizes) > maxExpanded {
			return nil, mariposa.Errorf(mariposa.TooLarge, "the Compose file has too many values, because aliases (*name) repeat parts of it: it may have %d", maxExpanded)
		}
	}
	return s, nil
}

// maxExpanded bounds the values of a file whose aliases are replaced by what they stand for.
const maxExpanded = 200_000

// expanded counts the values of a node; at most one more than maxExpanded. An alias that contains
// itself counts as too many.
func expanded(n *yaml.Node, sizes map[*yaml.Node]int) int {
	if size, known := sizes[n]; known {
		return size
	}
	sizes[n] = maxExpanded + 1 // until it is known
	size := 1
	if n.Alias != nil {
		size += expanded(n.Alias, sizes)
	}
	for _, below := range n.Content {
		if size = min(size+expanded(below, sizes), maxExpanded+1); size > maxExpanded {
			break
		}
	}
	sizes[n] = size
	return size
}

var lineNumber = regexp.MustCompile(`\bline (\d+)(?:, column \d+)?: ?`)

// syntaxError is the error for text that is not YAML.
func syntaxError(err error) error {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	f := mariposa.Fault{Code: mariposa.FaultSyntax, Message: "is not valid YAML: " + lineNumber.ReplaceAllString(message, "")}
	if m := lineNumber.FindStringSubmatch(message); m != nil {
		f.Line, _ = strconv.Atoi(m[1])
	}
	return fault(f)
}

// find returns the place of a key, or of the nearest key around it that is written in the
// file. Steps are keys; in a list, the name or source of an entry, or [3].
func (s *source) find(steps ...string) spot {
	best, depth := spot{}, 0
	for _, doc := range s.docs {
		if at, reached := s.search(doc, steps, maxFollowed); reached >= depth && at.line > 0 {
			best, depth = at, reached
		}
	}
	best.path = join(best.steps)
	if best.node == nil || best.node.Kind != yaml.ScalarNode { // else the rest is part of its text
		best.path = join(append(slices.Clip(best.steps), steps[depth:]...))
	}
	if depth < len(steps) {
		best.node = nil
	}
	if depth < 2 && len(steps) > 1 {
		for _, doc := range s.docs {
			if key, _ := s.child(doc, "include", maxFollowed); key != nil {
				best.line = key.Line // it comes from an included file
			}
		}
	}
	return best
}

// search follows steps from a node and returns how many of them it found.
func (s *source) search(from *yaml.Node, steps []string, follow int) (at spot, reached int) {
	n := from
	for i, step := range steps {
		key, value := s.child(n, step, follow)
		if key == nil {
			if i == 2 && steps[0] == "services" {
				return s.searchBase(from, n, steps, at, follow)
			}
			return at, i
		}
		if n = target(n); n.Kind == yaml.SequenceNode && !hasNames(steps[:i]) {
			step = fmt.Sprintf("[%d]", s.positions(n)[step])
		}
		at, n = spot{line: key.Line, node: value, steps: append(slices.Clip(at.steps), step)}, value
	}
	return at, len(steps)
}

// hasNames reports whether the entries of a list give values to names: NAME=value.
func hasNames(steps []string) bool {
	last := steps[len(steps)-1]
	return last == "environment" || last == "labels"
}

// searchBase continues a search in the service that a service extends.
func (s *source) searchBase(from, service *yaml.Node, steps []string, at spot, follow int) (spot, int) {
	key, extends := s.child(service, "extends", follow)
	if key == nil {
		return at, 2
	}
	at.line, at.node = key.Line, nil
	_, file := s.child(extends, "file", follow)
	_, base := s.child(extends, "service", follow)
	if extends.Kind == yaml.ScalarNode {
		base = extends
	}
	if file != nil || base == nil || follow == 0 {
		return at, 2
	}
	if below, reached := s.search(from, append([]string{steps[0], base.Value}, steps[2:]...), follow-1); reached > 2 {
		below.steps = append(slices.Clip(at.steps), below.steps[2:]...)
		return below, reached
	}
	return at, 2
}

// child returns an entry of a mapping or list: the node whose line is that of the entry,
// and its value.
func (s *source) child(n *yaml.Node, name string, follow int) (key, value *yaml.Node) {
	n = target(n)
	switch {
	case n == nil:
	case n.Kind == yaml.MappingNode:
		if i, ok := s.positions(n)[name]; ok {
			return n.Content[i], target(n.Content[i+1])
		}
		if i, ok := s.positions(n)["<<"]; ok && follow > 0 {
			return s.merged(n.Content[i+1], name, follow-1)
		}
	case n.Kind == yaml.SequenceNode:
		if i, ok := s.positions(n)[name]; ok {
			return n.Content[i], target(n.Content[i])
		}
	}
	return nil, nil
}

// merged finds an entry in the value of a merge key. Of a list, it searches as many as
// may be followed.
func (s *source) merged(from *yaml.Node, name string, follow int) (key, value *yaml.Node) {
	from = target(from)
	if from == nil || from.Kind != yaml.SequenceNode {
		return s.child(from, name, follow)
	}
	for _, one := range from.Content[:min(len(from.Content), follow)] {
		if key, value = s.child(one, name, follow/len(from.Content)); key != nil {
			return key, value
		}
	}
	return nil, nil
}

// target follows aliases.
func target(n *yaml.Node) *yaml.Node {
	for range maxFollowed {
		if n == nil || n.Kind != yaml.AliasNode {
			return n
		}
		n = n.Alias
	}
	return nil
}

// naming are the keys by which an entry of a list is found.
var naming = []string{"source", "target", "path", "service"}

// positions returns where in the content of a node each name is.
func (s *source) positions(n *yaml.Node) map[string]int {
	if known := s.index[n]; known != nil {
		return known
	}
	all := make(map[string]int, len(n.Content))
	s.index[n] = all
	put := func(name string, i int) {
		if _, twice := all[name]; !twice {
			all[name] = i
		}
	}
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			put(n.Content[i].Value, i)
		}
		return all
	}
	for i, item := range n.Content {
		all["["+strconv.Itoa(i)+"]"] = i
		if item = target(item); item == nil {
			continue
		}
		if item.Kind == yaml.ScalarNode {
			name, _, _ := strings.Cut(item.Value, "=")
			put(item.Value, i)
			put(name, i)
			continue
		}
		for _, key := range naming {
			if _, value := s.child(item, key, maxFollowed); value != nil && value.Kind == yaml.ScalarNode {
				put(value.Value, i)
			}
		}
	}
	return all
}

// items returns the entries of a list as they are written.
func (s *source) items(steps ...string) []*yaml.Node {
	n := s.find(steps...).node
	if n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	return n.Content
}

// scalars visits every text of the file with its path.
func (s *source) scalars(visit func(line int, path []string, text string)) {
	var walk func(n *yaml.Node, path []string)
	walk = func(n *yaml.Node, path []string) {
		switch n.Kind {
		case yaml.ScalarNode:
			visit(n.Line, path, n.Value)
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				walk(n.Content[i+1], append(slices.Clip(path), n.Content[i].Value))
			}
		case yaml.SequenceNode:
			for i, item := range n.Content {
				walk(item, append(slices.Clip(path), fmt.Sprintf("[%d]", i)))
			}
		}
	}
	for _, doc := range s.docs {
		walk(doc, nil)
	}
}

// join writes steps as a path: services.web.ports[0].
func join(steps []string) string {
	var b strings.Builder
	for i, step := range steps {
		if i > 0 && !strings.HasPrefix(step, "[") {
			b.WriteByte('.')
		}
		b.WriteString(step)
	}
	return b.String()
}

func (t *translation) note(lost bool, steps []string, format string, args ...any) {
	at := t.src.find(steps...)
	t.notes = append(t.notes, Note{Line: at.line, Path: at.path, Message: fmt.Sprintf(format, args...), Lost: lost})
}

// inOrder sorts names of services as the file has them.
func (t *translation) inOrder(names []string) []string {
	return t.sortByLine(names, "services")
}

// sortByLine sorts the keys of a mapping as the file has them, and by name those that the
// file does not have.
func (t *translation) sortByLine(names []string, steps ...string) []string {
	lines := make(map[string]int, len(names))
	for _, name := range names {
		if at := t.src.find(append(slices.Clip(steps), name)...); at.node != nil {
			lines[name] = at.line
		} else {
			lines[name] = 1 << 30
		}
	}
	sorted := slices.Clone(names)
	slices.SortFunc(sorted, func(a, b string) int { return cmp.Or(cmp.Compare(lines[a], lines[b]), cmp.Compare(a, b)) })
	return sorted
}
