package report

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Plain makes text that came from a file, a console or a user safe to show in one line: what
// would move a cursor, break the line or hide is written as in a Go string, \x1b, and so is a
// backslash, so that different texts stay different.
func Plain(text string) string {
	if strings.IndexFunc(text, hidden) < 0 && utf8.ValidString(text) {
		return text
	}
	var out []byte
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && n == 1:
			out = fmt.Appendf(out, `\x%02x`, text[0])
		case hidden(r):
			quoted := strconv.AppendQuoteRune(nil, r)
			out = append(out, quoted[1:len(quoted)-1]...)
		default:
			out = append(out, text[:n]...)
		}
		text = text[n:]
	}
	return string(out)
}

// hidden says whether a rune cannot be shown as it is.
func hidden(r rune) bool { return r == '\\' || !unicode.IsPrint(r) && r != '\u00a0' }

// Word makes a name one that file names, tags and benchmark names take, and no other name
// the same: a space is _, and each byte of what else is no letter, digit, mark or one of -.+
// is % and two hexadecimal digits. Only what joins words is none of these.
func Word(name string) string {
	var out strings.Builder
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		switch part := name[i : i+n]; {
		case r == ' ':
			out.WriteByte('_')
		case strings.ContainsRune("-.+", r), r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r)):
			out.WriteString(part)
		default:
			fmt.Fprintf(&out, "%%%02X", part[0])
			for _, b := range []byte(part[1:]) {
				fmt.Fprintf(&out, "%%%02X", b)
			}
		}
		i += n
	}
	return out.String()
}

// dotless is Word for where a dot joins words.
func dotless(name string) string { return strings.ReplaceAll(Word(name), ".", "%2E") }

// title makes a scenario's name one that a Go benchmark may have: low-priority is
// LowPriority. Another name that would be the same has its first byte as Word writes others.
func title(name string) string {
	var out strings.Builder
	plain := name != ""
	for part := range strings.SplitSeq(name, "-") {
		plain = plain && part != "" && part[0] >= 'a' && part[0] <= 'z' && strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' && r < 'a' || r > 'z' }) < 0
		if plain {
			out.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	if plain {
		return out.String()
	}
	return "%" + fmt.Sprintf("%02X", name[:min(1, len(name))]) + Word(name[min(1, len(name)):])
}

// longestName is how many bytes of a file's name file systems take; Windows counts fewer.
const longestName = 200

// fileName makes one of words. A long one ends in a checksum of the whole.
func fileName(ext string, words ...string) string {
	name := strings.Join(words, ",")
	if len(name)+len(ext) > longestName {
		cut := strings.ToValidUTF8(name[:longestName-len(ext)-20], "")
		name = fmt.Sprintf("%s,,%.8x", cut, sha256.Sum256([]byte(name)))
	}
	return name + ext
}
