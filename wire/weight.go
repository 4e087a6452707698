package wire

import (
	"encoding/json"
	"unicode/utf8"

	"mariposa"
)

// targetWeight is the size in bytes beyond which the next frame is begun.
const targetWeight = 1 << 20

// MaxWeight is how large one instance's values, or one workload, may be: anything larger
// fits no frame, so no agent could ever receive it.
const MaxWeight = MaxFrame - 64<<10

// Pack packs values into frames that the other side accepts, limited in number and in
// size. It returns the values that are too large for any frame.
func Pack(items []MdataItem) (frames []*Mdata, tooLarge []MdataItem) {
	var f *Mdata
	bytes := 0
	for i := range items {
		it := &items[i]
		w := it.Weight()
		if w > MaxWeight {
			tooLarge = append(tooLarge, *it)
			continue
		}
		if f == nil || len(f.Items) == Batch || bytes+w > targetWeight {
			f, bytes = &Mdata{}, 0
			frames = append(frames, f)
		}
		f.Items = append(f.Items, *it)
		bytes += w
	}
	return frames, tooLarge
}

// PackQuarantined divides an inventory into parts, one for each frame, limited in number, in
// size and in content. There is at least one part.
func PackQuarantined(all []mariposa.Quarantined) (parts [][]mariposa.Quarantined) {
	from, bytes, sum := 0, 0, content{}
	for i := range all {
		b, _ := json.Marshal(&all[i]) // never fails
		c := countContent(b)
		c.values++ // the comma
		if i-from == Batch || i > from && (bytes+len(b) > targetWeight || sum.objects+c.objects > maxReportObjects/2 || sum.values+c.values > maxReportValues/2) {
			parts = append(parts, all[from:i])
			from, bytes, sum = i, 0, content{}
		}
		bytes, sum.objects, sum.values = bytes+len(b), sum.objects+c.objects, sum.values+c.values
	}
	return append(parts, all[from:])
}

// IsFull reports whether the next status begins another frame.
func (r *Report) IsFull() bool { return len(r.Items) >= Batch || r.weight > targetWeight }

// Add adds the status of an instance.
func (r *Report) Add(it Status) {
	r.Items = append(r.Items, it)
	r.weight += 512 + len(it.Status.Reason)
	for _, address := range it.Status.Addresses {
		r.weight += 32 + len(address)
	}
	for name, text := range it.Status.Details {
		r.weight += 32 + len(name) + len(text)
	}
	for _, c := range it.Status.Checks {
		r.weight += 128 + len(c.Name) + len(c.Reason)
	}
	for i := range it.Status.Members {
		r.weight += 320 + len(it.Status.Members[i].Reason)
	}
}

// ChecksWeight is how many bytes health checks take in a frame, at most.
func ChecksWeight(c *Checks) int {
	n := 64
	for i := range c.List {
		h := &c.List[i]
		n += 512 + quotedLength(h.Network) + quotedLength(h.Path) + quotedLength(h.User) + quotedLength(h.ExpectBody) + 48*len(h.ExpectStatus) + variablesWeight(h.ExpectHeaders)
		for _, word := range h.Command {
			n += quotedLength(word) + 1
		}
	}
	return n
}

// Weight is how many bytes the values take in a frame, at most.
func (it *MdataItem) Weight() int { return 64 + quotedLength(it.ID) + variablesWeight(it.Values) }

// WorkloadWeight is how many bytes a workload takes in a frame, at most.
func WorkloadWeight(w *mariposa.Workload) int {
	n := 512 + quotedLength(string(w.Compute)) + quotedLength(w.Image) + quotedLength(string(w.Restart.Policy)) + quotedLength(w.PortMark) + quotedLength(w.WorkingDir) + quotedLength(w.User) + 48*len(w.Ports)
	for _, words := range [][]string{w.Command, w.Entrypoint, w.DNS, w.DNSSearch} {
		for _, word := range words {
			n += quotedLength(word) + 1
		}
	}
	for _, list := range [][]mariposa.Variable{w.Environment, w.Tags, w.Files} {
		n += variablesWeight(list)
	}
	if w.Dummy != nil {
		n += 256 + quotedLength(w.Dummy.UpdateInPlaceProp)
	}
	return n
}

// LoginWeight is how many bytes a login takes in a frame, at most.
func LoginWeight(l *mariposa.Login) int {
	return 128 + quotedLength(l.Registry) + quotedLength(l.Username) + quotedLength(l.Password)
}

// MountsWeight is how many bytes an instance's mounts take in a frame, at most.
func MountsWeight(list []mariposa.Mount) int {
	n := 0
	for _, m := range list {
		n += 64 + quotedLength(m.Volume) + quotedLength(m.Name) + quotedLength(m.Path)
	}
	return n
}

// JoinsWeight is how many bytes an instance's networks take in a frame, at most.
func JoinsWeight(list []mariposa.Join) int {
	n := 0
	for _, j := range list {
		n += 64 + quotedLength(j.Network) + quotedLength(j.Attachment) + quotedLength(j.Name)
	}
	return n
}

func variablesWeight(list []mariposa.Variable) int {
	n := 0
	for _, v := range list {
		n += quotedLength(v.Name) + quotedLength(v.Value) + 24
	}
	return n
}

// quotedLength is the length of a text as a JSON string, with quotes and escapes.
func quotedLength(s string) int {
	n := len(s) + 2
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			switch {
			case c < ' ' || c == '<' || c == '>' || c == '&':
				n += 5
			case c == '"' || c == '\\':
				n++
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			n += 5
		case r == '\u2028' || r == '\u2029':
			n += 3
		}
		i += size
	}
	return n
}
