package mariposa

import (
	"strings"
	"unicode"
)

// ImageLabels are what the labels of an image say about its origin. They are only shown:
// nothing depends on them.
type ImageLabels struct {
	Version  string `json:"version,omitempty"`
	Revision string `json:"revision,omitempty"` // most often a commit
}

// The labels that name the version and the revision of an image.
const (
	labelVersion  = "org.opencontainers.image.version"
	labelRevision = "org.opencontainers.image.revision"
)

// maxImageLabel bounds a label of an image that is kept, in bytes.
const maxImageLabel = 128

// LabelsOf returns what the labels of an image say about its origin.
func LabelsOf(labels map[string]string) ImageLabels {
	return ImageLabels{Version: labels[labelVersion], Revision: labels[labelRevision]}.Clean()
}

// Clean returns labels that are short and safe to show: whoever builds an image writes what
// they like into its labels.
func (l ImageLabels) Clean() ImageLabels {
	return ImageLabels{Version: cleanLabel(l.Version), Revision: cleanLabel(l.Revision)}
}

// cleanLabel removes what terminals and browsers do not show but obey, such as control
// characters and those that reverse the direction of text, and cuts the text.
func cleanLabel(text string) string {
	var b strings.Builder
	for _, r := range text[:min(len(text), 16*maxImageLabel)] {
		switch {
		case unicode.IsSpace(r):
			r = ' '
		case !unicode.IsPrint(r) || r == unicode.ReplacementChar:
			continue
		}
		if b.Len()+len(string(r)) > maxImageLabel-len("…") {
			return strings.TrimSpace(b.String()) + "…"
		}
		b.WriteRune(r)
	}
	return strings.TrimSpace(b.String())
}
