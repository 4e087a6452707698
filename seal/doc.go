// Package seal keeps secrets: sealed where they are stored, masked where they
// are shown.
//
// Sealing has two layers. Every owner (a project, or the store itself for what
// belongs to none) has one inner key, and everything of the owner is sealed with
// it. The inner key lies in the store, wrapped with an outer key that lies in a
// file outside the store: neither of the two is worth anything without the
// other. Changing the outer key wraps the inner keys anew and touches nothing
// that they seal.
//
// The room owns keys, what is sealed with them, and what a secret looks like in
// a text. It refuses to know who may read a secret, and what a secret is for.
//
// # The key file, format 1 (2026-11-15)
//
// One JSON document, readable by its owner alone (mode 0600):
//
//	{
//	  "about": "what this file is, for the person who finds it",
//	  "format": 1,
//	  "primary": "5d0c3a7e91b24f68",
//	  "keys": [
//	    {"name": "5d0c3a7e91b24f68", "key": "32 random bytes in base64"}
//	  ]
//	}
//
// The primary key wraps what is new; the others are there only while a rotation
// is under way, to open what it has not reached yet. A key's name is derived
// from the key, so it may be shown, and a damaged key does not fit its name. The
// file is always replaced whole, by renaming. Every replica needs the same file:
// share it, or copy it after a rotation.
//
// # What is derived and how things are sealed (2026-11-15)
//
// Keys are never used as they are: HKDF-SHA-256 with a text for each use makes
// the key that wraps, the one that seals, the one for digests, and the name.
// Sealed bytes are one byte that says the format (1), a random nonce of 12 bytes,
// and AES-256-GCM's answer. A random nonce is safe for 2^32 seals with one key.
//
// What a rotation does not do: whoever has both a former outer key and a copy of
// the store from its time has the inner keys, which stay the same.
package seal
