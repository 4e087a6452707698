package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Access returns a short text that differs after the rights of a caller have changed, so that
// programs that show what a caller can do notice it. It tells nothing else.
func (d *Directory) Access(c *Caller) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %t %+v\n", c.User, c.Admin, c.Bounds) // a hash accepts everything
	if !c.Admin {
		for _, org := range d.picture.OrganizationsOf(c.User) {
			spec := org.Spec()
			fmt.Fprintf(h, "%s %s %s\n", org.ID, spec.Members[c.User], spec.Base)
		}
		for _, p := range d.picture.ProjectsWith(c.User) {
			fmt.Fprintf(h, "%s %s\n", p.ID, p.Spec().Users[c.User])
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:20])
}
