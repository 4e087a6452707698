package manifest

import (
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"mariposa"
)

// Metadata declares a value that the project needs; the value itself is never
// part of a manifest.
type Metadata struct {
	Name        string
	Description string
	Required    bool
	Secret      bool
	Protect     *bool  // nil: unchanged; false: an operator removes the protection
	Generate    int    // length of a value to generate when none is set; 0: none
	Type        string // string | integer | boolean
	Pattern     string // RE2; the whole value must match. Empty: anything
	Choices     []string
	Default     *string // used where no value is set
}

const (
	typeText    = "string"
	typeInteger = "integer"
	typeBoolean = "boolean"
)

var metadataKeys = keys[Metadata]{
	"description": func(c *checker, at *spot, m *Metadata) { m.Description, _ = c.text(at) },
	"required":    func(c *checker, at *spot, m *Metadata) { m.Required, _ = c.flag(at) },
	"secret":      func(c *checker, at *spot, m *Metadata) { m.Secret, _ = c.flag(at) },
	"protect": func(c *checker, at *spot, m *Metadata) {
		if protect, ok := c.flag(at); ok {
			m.Protect = &protect
		}
	},
	"generate": metadataGenerate,
	"type":     metadataType,
	"pattern":  metadataPattern,
	"choices":  func(c *checker, at *spot, m *Metadata) { m.Choices = c.choices(at) },
	"default": func(c *checker, at *spot, m *Metadata) {
		if text, ok := c.text(at); ok {
			m.Default = &text
		}
	},
}

func (c *checker) metadata(at *spot) Metadata {
	m := Metadata{Name: at.key, Type: typeText}
	if why := metadataName(at.key); why != "" {
		c.invalid(at, "the name %s", why)
	}
	before := len(c.faults)
	if object(c, at, "metadata.*.", metadataKeys, &m) && len(c.faults) == before && at.kind() == kindMap {
		c.metadataFits(at, &m)
	}
	return m
}

// metadataFits checks that the keys of a declaration fit each other.
func (c *checker) metadataFits(at *spot, m *Metadata) {
	if m.Protects() && !m.Secret {
		c.invalid(at.child("protect"), "only secrets can be protected; add secret: true")
	}
	if m.Default != nil {
		if m.Secret {
			c.invalid(at.child("default"), "a secret cannot have a default, because everyone who can read the manifest would see it; set the value, or use generate")
		}
		if m.Generate > 0 {
			c.invalid(at.child("default"), "cannot be combined with generate; keep one")
		}
		if why := m.whyInvalid(*m.Default); why != "" {
			c.invalid(at.child("default"), "%s", why)
		}
	}
	if m.Generate > 0 {
		for _, key := range []string{"type", "pattern", "choices"} {
			if rule := at.child(key); rule != nil && (key != "type" || m.Type != typeText) {
				c.invalid(rule, "cannot be combined with generate, which creates letters and digits; remove one of them")
			}
		}
	}
	for i, choice := range m.Choices {
		other := *m
		other.Choices = nil
		if why := other.whyInvalid(choice); why != "" {
			c.invalid(at.child("choices").item(i), "%s", why)
		}
	}
}

// maxGenerated bounds how many values are generated at once.
const maxGenerated = 100

func metadataGenerate(c *checker, at *spot, m *Metadata) {
	m.Generate, _ = c.whole(at, 1, 1024)
	if c.generated++; c.generated == maxGenerated+1 {
		c.fault(at, mariposa.FaultTooLarge, "a manifest can have at most %d generated values", maxGenerated)
	}
}

func metadataType(c *checker, at *spot, m *Metadata) {
	if word, ok := c.choice(at, typeText, typeInteger, typeBoolean); ok {
		m.Type = word
	}
}

func (c *checker) choices(at *spot) []string {
	texts := c.names(at, "texts", nil)
	if at.kind() == kindList && len(at.node.Content) == 0 {
		c.invalid(at, "must list at least one value")
	}
	return texts
}

// Matching takes time that grows with the size of a pattern times the length of
// the value, so both are bounded.
const (
	maxPattern     = 512    // bytes
	maxPatternSize = 2_000  // steps of one, with its repetitions written out
	maxPatterns    = 20_000 // steps of all in one manifest
	maxMatched     = 16 << 10
)

func metadataPattern(c *checker, at *spot, m *Metadata) {
	text, ok := c.text(at)
	switch {
	case !ok || c.pattern > maxPatterns:
		return
	case text == "" || len(text) > maxPattern:
		c.invalid(at, "must be a regular expression of 1 to %d bytes", maxPattern)
		return
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		c.invalid(at, "must be a regular expression in RE2 syntax: %s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
		return
	}
	size := patternSize(tree)
	if size > maxPatternSize {
		c.invalid(at, "has too many repetitions; simplify the pattern")
	}
	if c.pattern += size; c.pattern > maxPatterns {
		c.fault(at, mariposa.FaultTooLarge, "the patterns of this manifest together are too large; simplify them")
	}
	m.Pattern = text
}

// patternSize estimates how many steps a pattern has once repetitions are
// written out.
func patternSize(re *syntax.Regexp) int {
	size := 1 + len(re.Rune)/8
	for _, sub := range re.Sub {
		size += patternSize(sub)
	}
	if re.Op == syntax.OpRepeat {
		size *= max(re.Min+1, re.Max)
	}
	return min(size, 1<<30)
}

// Declared returns what the manifest declares for a metadata key.
func (p *Project) Declared(key string) (Metadata, bool) {
	if p == nil {
		return Metadata{}, false
	}
	i, ok := slices.BinarySearchFunc(p.Metadata, key, func(m Metadata, key string) int { return strings.Compare(m.Name, key) })
	if !ok {
		return Metadata{}, false
	}
	return p.Metadata[i], true
}

// IsSecret reports whether the manifest declares a key secret.
func (p *Project) IsSecret(key string) bool {
	m, _ := p.Declared(key)
	return m.Secret
}

// Value returns the value of {{ .meta.key }}: the one that is set, or the declared
// default.
func (p *Project) Value(v *Values, key string) (string, bool) {
	if value, ok := v.Get(key); ok {
		return value.Text, true
	}
	if m, ok := p.Declared(key); ok && m.Default != nil {
		return *m.Default, true
	}
	return "", false
}

// CheckValue checks a value against what the manifest declares for its key.
// Undeclared keys may have any value. The error never shows the value.
func (p *Project) CheckValue(key, text string) error {
	if m, ok := p.Declared(key); ok {
		if why := m.whyInvalid(text); why != "" {
			return valueFault(key, mariposa.FaultInvalid, why)
		}
	}
	return nil
}

// CheckValues checks values against the declarations of the manifest, and lists every
// fault. It skips keys that hidden reports; nil skips none. A caller who may write a
// pattern, and learns whether a hidden value matches it, could find out the value.
func (p *Project) CheckValues(v *Values, hidden func(key string) bool) error {
	c := &checker{subject: valuesSubject}
	if v == nil || p == nil {
		return nil
	}
	bad := map[string]string{}
	for _, m := range p.Metadata {
		if value, ok := v.ByKey[m.Name]; ok && (hidden == nil || !hidden(m.Name)) {
			if why := m.whyInvalid(value.Text); why != "" {
				bad[m.Name] = why
			}
		}
	}
	if len(bad) == 0 {
		return nil
	}
	pg, err := readValuesDocument(v.Masked(Mask)) // for the lines, as people see them: a secret may have many
	if err != nil {
		return err
	}
	top := valuesSpot(pg.root)
	for _, e := range pg.entries {
		if why := bad[e.key.Value]; why != "" {
			c.invalid(top.entry(e.key, e.value), "%s", why)
		}
	}
	return c.err()
}

// whyInvalid returns what a value must be; empty if the value is valid. The text never
// contains the value.
func (m *Metadata) whyInvalid(text string) string {
	switch _, err := strconv.ParseInt(text, 10, 64); {
	case m.Type == typeInteger && err != nil:
		return "must be a 64-bit integer"
	case m.Type == typeBoolean && !strings.EqualFold(text, "true") && !strings.EqualFold(text, "false"):
		return "must be true or false"
	case len(m.Choices) > 0 && !slices.Contains(m.Choices, text):
		return "must be " + shortenText(joinWithOr(m.Choices))
	case m.Pattern == "":
		return ""
	case len(text) > maxMatched:
		return "must have at most " + strconv.Itoa(maxMatched) + " bytes, the limit for values with a pattern"
	}
	if !matches(m.Pattern, text) {
		return "must match the pattern " + quoteText(m.Pattern)
	}
	return ""
}

// matches reports whether a pattern matches the whole of a text: the longest
// match from its beginning is all of it.
func matches(pattern, text string) bool {
	re, err := regexp.Compile(pattern)
	if err != nil { // it was compiled when the manifest was read
		return false
	}
	re.Longest()
	found := re.FindStringIndex(text)
	return found != nil && found[0] == 0 && found[1] == len(text)
}

// Missing lists the keys that must be set and are not, sorted.
func (p *Project) Missing(v *Values) []string {
	if p == nil {
		return nil
	}
	var missing []string
	for _, m := range p.Metadata {
		if _, ok := p.Value(v, m.Name); !ok && m.Required && m.Generate == 0 {
			missing = append(missing, m.Name)
		}
	}
	return missing
}

// Generate generates the values that are declared to be generated and not set, and lists
// their keys. Random returns a text of n letters and digits.
func (p *Project) Generate(v *Values, random func(n int) string, now time.Time) (*Values, []string, error) {
	var made []string
	if p == nil {
		return v, nil, nil
	}
	for _, m := range p.Metadata {
		if _, set := v.Get(m.Name); set || m.Generate == 0 {
			continue
		}
		next, err := v.Set(m.Name, random(m.Generate), m.Secret, now)
		if err != nil {
			return nil, nil, err
		}
		v, made = next, append(made, m.Name)
	}
	return v, made, nil
}

// valueFault returns an error about one key. Its text must not contain the value.
func valueFault(key string, code mariposa.FaultCode, why string) error {
	field := "metadata"
	if key != "" {
		field += "." + key
	}
	fault := mariposa.Fault{Field: field, Code: code, Message: why}
	return &mariposa.Error{Code: mariposa.InvalidArgument, Message: fault.String(), Faults: []mariposa.Fault{fault}}
}
